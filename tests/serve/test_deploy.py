"""The files of deploy/: well formed, and in agreement with the settings and the metrics of the service."""

import re
from pathlib import Path

import pytest

from alimark.serve.settings import Settings, read_settings

yaml = pytest.importorskip("yaml")
pytest.importorskip("fastapi")

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_compose() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    services = compose["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or source == "./models" or (DEPLOY / source).is_file()
    settings = read_settings(DEPLOY / "serve.toml", {}, default_data=Path("data"))
    grace = float(services["alimark"]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.drain + settings.shutdown
    unit = (DEPLOY / "alimark.service").read_text("utf-8")
    assert float(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > settings.drain + settings.shutdown


def test_proxies_wait_longer_than_the_service_and_do_not_buffer() -> None:
    defaults = Settings(data=Path("data"))
    nginx, caddy = ((DEPLOY / name).read_text("utf-8") for name in ("nginx.conf", "Caddyfile"))
    for text in (nginx, caddy):
        assert text.count("{") == text.count("}")
        [wait] = re.findall(r"(?:proxy_read_timeout|response_header_timeout) (\d+)s", text)
        assert float(wait) > defaults.timeout
        assert f":{defaults.port}" in text
        assert "/metrics" in text
    assert "proxy_buffering off" in nginx
    assert "flush_interval -1" in caddy
    assert f"client_max_body_size {defaults.max_body // 2**20}m" in nginx


def test_alerts_name_metrics_that_exist(tmp_path: Path) -> None:
    from stand_ins import stand_in_service

    service = stand_in_service(tmp_path)
    known = set(re.findall(r"# TYPE (\w+)", service.metrics.text().decode()))
    service.close()
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
    for rule in rules:
        for name in re.findall(r"alimark_\w+", rule["expr"]):
            assert name in known or name.removesuffix("_bucket") in known, name
        assert rule["annotations"]["summary"]
