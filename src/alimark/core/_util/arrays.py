"""Names for the array types that many modules share."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Packed = NDArray[np.uint64]
