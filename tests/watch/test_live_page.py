"""The live page is for this machine and for those who have its link, and it only reads."""

import http.client
import json
import socket
import stat
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("plotly")
pytest.importorskip("starlette")
pytest.importorskip("httpx2")
pytest.importorskip("uvicorn")

from starlette.testclient import TestClient

from metareplay.errors import InputError, MetareplayError
from metareplay.watch.folder import WatchedFolder
from metareplay.watch.server import serving
from metareplay.watch.site import make_site

TOKEN, PORT = "t" * 43, 8123


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return TestClient(make_site(WatchedFolder(tmp_path), TOKEN, PORT), f"http://127.0.0.1:{PORT}")


@pytest.mark.parametrize("name", ["", "page.js", "page.css", "plotly.js", "state.json"])
def test_what_the_link_opens_comes_with_strict_headers(client: TestClient, name: str) -> None:
    answer = client.get(f"/{TOKEN}/{name}")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:1", "localhost.evil:8123", ""]
)
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    answer = client.get(f"/{TOKEN}/", headers={"Host": host})
    assert answer.status_code == 403
    assert "host" in answer.text
    assert "content-security-policy" in answer.headers


def test_the_name_of_this_machine_is_served(client: TestClient) -> None:
    assert client.get(f"/{TOKEN}/", headers={"Host": f"localhost:{PORT}"}).status_code == 200
    assert client.get(f"/{TOKEN}", follow_redirects=False).headers["location"] == f"/{TOKEN}/"


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "//", f"/{'u' * 43}/", f"/{TOKEN[:-1]}/", f"/{TOKEN}t/", "/%ff%fe/", "/é/"]
)
def test_missing_and_wrong_tokens_are_refused(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 403
    assert "token" in answer.text
    assert TOKEN not in answer.text


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "XYZ"])
def test_it_can_only_be_read(client: TestClient, method: str) -> None:
    answer = client.request(method, f"/{TOKEN}/state.json")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["../folder.py", "..%2f..%2fpyproject.toml", "page/page.js", "events/../../x", "runs"])
def test_there_is_nothing_else(client: TestClient, path: str) -> None:
    assert client.get(f"/{TOKEN}/{path}").status_code in (403, 404)


def test_events_come_and_the_address_stays_over_a_restart(tmp_path: Path) -> None:
    addresses = []
    for number in range(2):
        with serving(tmp_path) as address:
            addresses.append(address)
            assert threading.active_count() > 1
            news = first_news(address)
            assert news["counts"]["broken"] == number
            (tmp_path / "broken.json").write_text("{")
    assert addresses[0] == addresses[1]
    assert stat.S_IMODE((tmp_path / ".watch").stat().st_mode) == 0o600


def first_news(address: str) -> dict[str, dict[str, int]]:
    """What the page is told first."""
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    connection.request("GET", f"{where.path}events")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    lines = [answer.readline().decode().strip() for _ in range(3)]
    connection.close()
    assert lines[:2] == ["retry: 1000", "event: news"]
    found: dict[str, dict[str, int]] = json.loads(lines[2].removeprefix("data: "))
    return found


def test_only_this_machine_can_reach_it(tmp_path: Path) -> None:
    with serving(tmp_path / "not there yet") as address:
        where = urlsplit(address)
        assert where.hostname == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", where.port or 0), timeout=5):
            pass
        with pytest.raises(InputError, match="use another one"), serving(tmp_path, where.port):
            pass
    assert not (tmp_path / "not there yet").exists()


def test_an_address_that_others_may_have_read_is_not_used_again(tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        pass
    (tmp_path / ".watch").chmod(0o644)
    with serving(tmp_path) as other:
        assert urlsplit(other).path != urlsplit(address).path


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: None)
    with pytest.raises(MetareplayError, match="could not be started"), serving(tmp_path):
        pytest.fail("there is no page")
