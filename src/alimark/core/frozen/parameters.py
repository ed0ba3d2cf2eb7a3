"""The parameters of AliMark's keys.

Frozen: the names and values of these fields are in key files, and the ids of keys depend on them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from alimark.core._util.json_types import JsonObject
from alimark.core.frozen.directions import DirectionTable, known, noise_aware
from alimark.core.parameters import SchemeParameters
from alimark.errors import KeyFileError, KeyMismatch

if TYPE_CHECKING:
    from alimark.core.keys.fitted import Fitted

MAX_BLOCK_SIZE = 64
MAX_OFFSETS = 1024
MAX_RUN = 64
MAX_PAYLOAD_BITS = 24
PAYLOAD_BLOCK_SIZES = (32, 64)
"""Block sizes that are large enough for payloads: the bits that no payload changes are whole bytes (`PayloadCode`)."""
SOFT_FORM = 3
"""What key files call the form of soft decisions (`soft_version`); no other form was ever released."""
DEFAULT_DECISION: Final = "soft"
SOFT_BLOCK_SIZE, SOFT_SPAN = 32, 32
WIDE_BLOCK_SIZE = 64
"""The block size of soft keys whose embedder has a table of directions: more of them still say something."""
HARD_BLOCK_SIZE = 8
DEFAULT_RUN = (6,)  # the sentences of each block of a soft key
DEFAULT_TEXT_VERSION = 1
"""What new soft keys record. Keys made by `Key.like` or read from a file keep theirs."""
TEXT_VERSIONS = (0, 1)
STARTS = ("text", "conversation")  # what can decide where in the key's sequence a text begins
CONVERSATION_RUNS = 4
"""The runs of a key whose texts follow their conversation, unless `offsets` says otherwise (docs/security.md)."""
SOFT_FIELDS = ("run", "directions", "text_version", "starts", "payload_bits")
"""The parameters that only soft keys have."""


@dataclass(frozen=True, eq=False)  # arrays have no single truth value
class AliMarkParameters(SchemeParameters):
    """The parameters of an AliMark key.

    The defaults of the fields are those of soft decisions with any embedder. `of` also knows the default block size of hard
    decisions, and the span that is best for an embedder.
    """

    scheme: ClassVar[str] = "alimark"
    embeds: ClassVar[bool] = True

    decision: str = DEFAULT_DECISION
    """"soft": a sentence's projection on the direction of its block is large. "hard": the signs of its projections match the
    bits of its block, as in the paper."""
    block_size: int = SOFT_BLOCK_SIZE
    """Secret bits for each sentence, which is also the number of secret vectors."""
    span: int | None = None
    """The number of directions of the embedding space that the vectors are taken from; None: the whole space."""
    centre: NDArray[np.float32] | None = None
    """A corpus mean of the embedder, subtracted from every embedding when marking and when detecting."""
    offsets: int = 1  # the number of blocks that a text may begin with, in secret
    run: tuple[int, ...] = (1,)
    """The number of neighbouring sentences that share each block; the last number holds for all further blocks."""
    directions: str | None = None
    """The digest of the table of directions that the vectors are taken from; None: the whole space, or a hard key."""
    text_version: int = 0
    """0 or 1, without effect: all texts are read in one way. Keys record it, and their ids depend on it."""
    starts: str = "text"
    """What decides with which of its `offsets` first runs a text begins: "text", a random choice for each text; "conversation",
    the first message and the number of sentences that were written already. In that case the key has `offsets` runs, which
    repeat, so that a conversation of any length is one sequence."""
    payload_bits: int = 0  # the bits of a payload, a message inside the mark; 0: none

    def __post_init__(self) -> None:
        if self.decision not in ("hard", "soft"):
            raise KeyFileError(f"decision {self.decision!r} is not known to this release; known: hard, soft")
        if type(self.block_size) is not int or not 1 <= self.block_size <= MAX_BLOCK_SIZE:
            raise KeyFileError(f"block_size must be a whole number from 1 to {MAX_BLOCK_SIZE}, not {self.block_size!r}")
        if self.centre is not None:
            centre = np.asarray(self.centre, np.float32)
            if centre.ndim != 1 or not np.isfinite(centre).all():
                raise KeyFileError("centre must be one finite number for each dimension of the embedder")
            object.__setattr__(self, "centre", centre)
        if type(self.offsets) is not int or not 1 <= self.offsets <= MAX_OFFSETS:
            raise KeyFileError(f"offsets must be a whole number from 1 to {MAX_OFFSETS}, not {self.offsets!r}")
        self._check_soft_fields()

    def _check_soft_fields(self) -> None:
        given: object = self.run
        run = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        if not run or not all(type(size) is int and 1 <= size <= MAX_RUN for size in run):
            raise KeyFileError(f"run must be one or more whole numbers from 1 to {MAX_RUN}, not {self.run!r}")
        object.__setattr__(self, "run", run)
        if self.directions is not None and not isinstance(self.directions, str):
            raise KeyFileError(f"directions must be the digest of a table, or null, not {self.directions!r}")
        if self.starts not in STARTS:
            raise KeyFileError(
                f"starts {self.starts!r} is not known to this release; upgrade alimark, or take one of: {', '.join(STARTS)}"
            )
        if self.starts == "conversation" and self.offsets < 2:
            raise KeyFileError('a key with starts="conversation" needs at least 2 runs; leave out offsets, or raise it')
        if type(self.text_version) is not int or self.text_version not in TEXT_VERSIONS:
            raise KeyFileError(f"text_version {self.text_version!r} is not known to this release; upgrade alimark")
        defaults = {field.name: field.default for field in fields(self)}
        if not self.soft and any(getattr(self, name) != defaults[name] for name in SOFT_FIELDS):
            raise KeyFileError(
                f"{', '.join(SOFT_FIELDS)} are parameters of soft decisions; leave them out, or make a key with "
                'decision="soft"'
            )
        self._check_payload()

    def _check_payload(self) -> None:
        if type(self.payload_bits) is not int or not 0 <= self.payload_bits <= MAX_PAYLOAD_BITS:
            raise KeyFileError(
                f"payload_bits {self.payload_bits!r} is not known to this release; upgrade alimark, or take a whole number "
                f"from 1 to {MAX_PAYLOAD_BITS} (0: no payload)"
            )
        if self.payload_bits and self.block_size not in PAYLOAD_BLOCK_SIZES:
            raise KeyFileError(
                f"a key with payloads needs a block_size of {' or '.join(map(str, PAYLOAD_BLOCK_SIZES))}, not {self.block_size}"
            )

    @property
    def soft(self) -> bool:
        """Whether sentences are chosen and detected by their projections on a block's direction, not by bits."""
        return self.decision == "soft"

    @property
    def follows_conversation(self) -> bool:
        """Whether a text begins where its conversation has got to, and the runs of the key repeat."""
        return self.starts == "conversation"

    @classmethod
    def of(
        cls,
        given: Mapping[str, object],
        *,
        preset: str | None = None,
        fingerprint: str = "",
        fitted: Fitted | None = None,
    ) -> Self:
        """Makes the parameters from those given and the defaults for the decision and the embedder.

        A block_size or span of None means the default. A span of 0 means the whole space. `fitted` is a table of directions
        that `alimark fit directions` learned, for embedders that have none.
        """
        wanted: JsonObject = {**cls._preset(preset), **given}
        cls.check_names(wanted)
        decision = wanted.get("decision", DEFAULT_DECISION)
        table = fitted_table(fitted) or noise_aware(fingerprint)
        spans = 0 if table is None else len(table.rows)
        if decision == "soft":
            wanted.setdefault("run", DEFAULT_RUN)
            wanted.setdefault("text_version", DEFAULT_TEXT_VERSION)
            if wanted.get("starts") == "conversation":
                wanted.setdefault("offsets", CONVERSATION_RUNS)
            if wanted.get("block_size") is None and wanted.get("span") is None and spans >= WIDE_BLOCK_SIZE:
                wanted["block_size"] = WIDE_BLOCK_SIZE
        block_size, span = _shape(decision, spans, wanted.pop("block_size", None), wanted.pop("span", None))
        if decision == "soft" and span is not None and table is not None:
            wanted.setdefault("directions", table.digest)
        return cls(block_size=block_size, span=span, **wanted)

    def table(self, fingerprint: str, fitted: Fitted | None) -> DirectionTable | None:
        """The table of directions of a soft key, None for vectors of the whole space; raises KeyFileError if there is none."""
        if self.directions is None:
            return None
        for table in (fitted_table(fitted), noise_aware(fingerprint)):
            if table is not None and table.digest == self.directions:
                return table
        raise KeyFileError(f"the directions {self.directions[:19]}... are not known to this release; upgrade alimark")

    def check(self, embedder: str, fingerprint: str, fitted: Fitted | None) -> None:
        """Checks that the span is at most the number of known directions of the embedder; raises KeyFileError if not."""
        super().check(embedder, fingerprint, fitted)
        if self.soft and (self.span is None) != (self.directions is None):
            raise KeyFileError("a soft key has both a span and a table of directions, or neither")
        if self.span is None:
            return
        table = self.table(fingerprint, fitted)
        most = known(fingerprint) if table is None else len(table.rows)
        if type(self.span) is not int or not self.block_size <= self.span <= most:
            raise KeyFileError(
                f"span must be a number of directions from block_size ({self.block_size}) to those known of {embedder} "
                f"({most}), not {self.span!r}"
            )

    def check_fitted(self, fitted: Fitted | None) -> None:
        """Checks a learned table of directions, which only soft keys have; raises KeyFileError if it does not fit."""
        table = fitted_table(fitted)
        if table is not None and table.digest != self.directions:
            raise KeyFileError("learned directions are for soft keys, and only with a span; leave the learned data out")

    def check_dimension(self, dimension: int) -> None:
        """Checks that the centre has the embedder's dimension; raises KeyMismatch if not."""
        if self.centre is not None and len(self.centre) != dimension:
            raise KeyMismatch(f"the key's centre has {len(self.centre)} dimensions, but the embedder has {dimension}")

    def to_json(self) -> JsonObject:
        """The parameters as a key file holds them. Parameters that were added later are left out at their default."""
        content: JsonObject = {"decision": self.decision, "block_size": self.block_size}
        if self.soft:
            content["soft_version"] = SOFT_FORM
        if self.span is not None:
            content["span"] = self.span
        if self.centre is not None:
            content["centre"] = base64.b64encode(self.centre.astype("<f4").tobytes()).decode()
        if self.offsets != 1:
            content["offsets"] = self.offsets
        if self.soft:
            content |= {name: getattr(self, name) for name in SOFT_FIELDS} | {"run": list(self.run)}
        return content

    @classmethod
    def parse(cls, content: JsonObject) -> Self:
        """Reads the parameters from the fields of a key file; raises KeyFileError for soft decisions of another form."""
        form = content.get("soft_version", 1) if content["decision"] == "soft" else SOFT_FORM
        if type(form) is not int or form > SOFT_FORM:
            raise KeyFileError(f"soft decisions of version {form!r} are not known to this release; upgrade alimark")
        if form != SOFT_FORM:
            raise KeyFileError(
                f"it has soft decisions of version {form}, which existed before the first release and are no longer found; "
                "make a new key for new texts: alimark keygen"
            )
        stored = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        if stored.get("centre") is not None:
            stored["centre"] = np.frombuffer(base64.b64decode(stored["centre"], validate=True), "<f4")
        return cls(**{**stored, "decision": content["decision"], "block_size": content["block_size"]})


def fitted_table(fitted: Fitted | None) -> DirectionTable | None:
    """The table of directions inside learned data, None without any; raises KeyFileError for a malformed table."""
    if fitted is None:
        return None
    rows, mean = fitted.arrays.get("directions"), fitted.arrays.get("mean")
    if rows is None or mean is None or rows.ndim != 2 or mean.shape != rows.shape[1:] or len(rows) < 1:
        raise KeyFileError("the learned data hold no table of directions; make one: alimark fit directions")
    return DirectionTable.of(rows, mean)


def _shape(decision: str, known_directions: int, block_size: int | None, span: int | None) -> tuple[int, int | None]:
    """The block size and the span; by default those for the decision and the number of known directions."""
    if decision != "soft" or span == 0:
        default = SOFT_BLOCK_SIZE if decision == "soft" else HARD_BLOCK_SIZE
        return default if block_size is None else block_size, span or None
    m = SOFT_BLOCK_SIZE if block_size is None else block_size
    if span is None and isinstance(m, int) and max(m, SOFT_SPAN) <= known_directions:
        span = max(m, SOFT_SPAN)
    return m, span
