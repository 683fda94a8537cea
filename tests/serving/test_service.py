"""The service answers, refuses with a reason, and names the field of what it does not accept."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from fake_translator import SECONDS, FakeTranslator, make_confidence
from hf_multisource.serving.application import make_app
from hf_multisource.serving.batching import Options
from hf_multisource.serving.service import Limits, Service, TranslateBody

TOKEN = "a secret of many letters"
LIMITS = Limits(
    max_body=2000,
    max_rows=3,
    max_characters=20,
    max_beams=6,
    max_queue=4,
    max_batch=4,
    max_wait=0.0,
    time_limit=SECONDS,
)
ROW = {"en": "open", "de": "öffnen"}


@pytest.fixture
def fake() -> FakeTranslator:
    return FakeTranslator()


@pytest.fixture
def client(fake: FakeTranslator) -> Iterator[TestClient]:
    yield from started(Service(fake, target="dsb", limits=LIMITS))


@pytest.fixture
def calibrated(fake: FakeTranslator) -> Iterator[TestClient]:
    yield from started(Service(fake, confidence=make_confidence(), limits=LIMITS))


def started(service: Service, token: str | None = None) -> Iterator[TestClient]:
    app = make_app(service, token)
    with TestClient(app, base_url="http://localhost:8000", raise_server_exceptions=False) as client:
        yield client


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/translate", json=body)


def test_one_row_is_answered_with_candidates_and_scores(client: TestClient, fake: FakeTranslator) -> None:
    answer = post(client, sources=ROW, n_best=2, num_beams=3, syntax="html")
    assert answer.status_code == 200
    candidates = [{"text": "OPEN | ÖFFNEN", "score": -0.1}, {"text": "OPEN | ÖFFNEN!", "score": -0.2}]
    assert answer.json() == {"translations": [{"candidates": candidates, "confidence": None, "refused": None}]}
    assert fake.options == [{"n_best": 2, "num_beams": 3, "max_new_tokens": None, "syntax": "html"}]


def test_several_rows_are_answered_in_order_and_refusals_say_why(client: TestClient) -> None:
    rows = [{"en": "a", "de": None}, {"de": "refuse"}, {"en": " ", "de": "c"}]
    first, second, third = post(client, sources=rows).json()["translations"]
    assert first["candidates"] == [{"text": "A", "score": -0.1}]
    assert second == {"candidates": [], "confidence": None, "refused": "the placeholder %S is missing"}
    assert third["candidates"][0]["text"] == "  | C"


def test_a_calibrated_service_gives_the_confidence_of_the_calibrated_search(
    calibrated: TestClient, fake: FakeTranslator
) -> None:
    (answer,) = post(calibrated, sources=ROW).json()["translations"]
    expected = make_confidence().probability(ROW, fake.translate([ROW], n_best=2)[0])
    assert answer["confidence"] == pytest.approx(expected)
    assert len(answer["candidates"]) == 1
    assert fake.options[0]["num_beams"] == 4
    for change in ({"num_beams": 5}, {"syntax": "printf"}):
        (other,) = post(calibrated, sources=ROW, **change).json()["translations"]
        assert other["confidence"] is None, change
    (refused,) = post(calibrated, sources={"en": "refuse"}).json()["translations"]
    assert refused["confidence"] == 0


@pytest.mark.parametrize(
    ("calibration", "model", "used"),
    [(None, None, "any"), (None, "printf", "printf"), ("gtk", "printf", "gtk"), ("gtk", None, "gtk")],
)
def test_the_syntax_of_the_calibration_is_the_default_and_the_only_one_with_a_confidence(
    fake: FakeTranslator, calibration: str | None, model: str | None, used: str
) -> None:
    service = Service(fake, confidence=make_confidence(facts={"syntax": calibration}), syntax=model, limits=LIMITS)
    for client in started(service):
        for syntax in (None, "any", "printf", "gtk"):
            (answer,) = post(client, sources=ROW, syntax=syntax).json()["translations"]
            assert (answer["confidence"] is not None) == (syntax in (None, used)), syntax
            assert fake.options[-1]["syntax"] == (syntax or used)


def test_an_unknown_syntax_of_the_calibration_is_refused_at_the_start(fake: FakeTranslator) -> None:
    with pytest.raises(ValueError, match=r"syntax is \['tex'\]; allowed are html"):
        Service(fake, confidence=make_confidence(facts={"syntax": ["tex"]}))


def test_a_score_that_is_no_number_is_null(client: TestClient, fake: FakeTranslator) -> None:
    (one,) = fake.translate([ROW], n_best=1)
    broken = replace(one, candidates=(replace(one.candidates[0], score=float("nan")),))
    fake.translate = lambda rows, **options: [broken]  # type: ignore[method-assign]
    assert post(client, sources=ROW).json()["translations"][0]["candidates"][0]["score"] is None


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "sources", "the field is missing"),
        ([], "body", "got []"),
        ({"sources": None}, "sources", "got None"),
        ({"sources": {"en": 3}}, "sources.en", "valid string; got 3"),
        ({"sources": [{"en": "a"}, {"de": ["b"]}]}, "sources[1].de", "valid string; got ['b']"),
        ({"sources": [3]}, "sources[0]", "valid dictionary; got 3"),
        ({"sources": {"fr": "a"}}, "sources.fr", "'fr' is no source of this model; its sources are en, de"),
        ({"sources": [{"en": "a"}, {"en": None, "de": " "}]}, "sources[1]", "no source has a text"),
        ({"sources": {}}, "sources", "no source has a text"),
        ({"sources": []}, "sources", "there are 0 rows; allowed are 1 to 3"),
        ({"sources": [ROW] * 4}, "sources", "there are 4 rows; allowed are 1 to 3"),
        ({"sources": {"en": "a" * 21}}, "sources.en", "the text has 21 characters; at most 20 are allowed"),
        ({"sources": ROW, "n_best": 0}, "n_best", "greater than or equal to 1; got 0"),
        ({"sources": ROW, "n_best": True}, "n_best", "valid integer; got True"),
        ({"sources": ROW, "n_best": 6}, "n_best", "n_best is 6; it must be at most num_beams, 5"),
        ({"sources": ROW, "num_beams": 1}, "num_beams", "greater than or equal to 2; got 1"),
        ({"sources": ROW, "num_beams": 7}, "num_beams", "num_beams is 7; it must be at most 6"),
        ({"sources": ROW, "syntax": "tex"}, "syntax", "syntax is 'tex'; allowed are html"),
        ({"sources": ROW, "temperature": 1}, "temperature", "not permitted; got 1"),
        ({"sources": ROW, "temperature": 1, "top_k": 1}, "temperature", "not permitted; got 1"),
        ({"n_best": 0, "temperature": 1}, "sources", "the field is missing"),
    ],
)
def test_a_field_that_is_not_allowed_is_named(client: TestClient, body: Any, field: str, message: str) -> None:
    answer = client.post("/translate", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert answer.json()["error"].startswith(f"{field}: ")
    assert message in answer.json()["error"]


COUNT = 90_000  # values, or unknown fields, in a body of about 1 MiB


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"sources": [1] * 5 * COUNT}, "sources[0]"),
        ({"sources": [{"en": "a"}] * 3 + [{"en": 1}] * COUNT}, "sources[3].en"),
        ({"sources": {f"{number}": number for number in range(COUNT)}}, "sources.0"),
        ({"sources": [{"en": "a"}, {"de": None, **{f"{number}": number for number in range(COUNT)}}]}, "sources[1].0"),
        ({"sources": {"en": "a"}, **{f"{number}": 1 for number in range(COUNT)}}, "0"),
        ({"sources": [{}] * 3 * COUNT}, "sources"),
        ({"sources": {f"{number}": "a" for number in range(COUNT)}}, "sources.0"),
        ([1] * 5 * COUNT, "body"),
    ],
)
def test_a_body_of_many_wrong_values_is_refused_at_the_first(fake: FakeTranslator, body: Any, field: str) -> None:
    """With an error for each value, Pydantic and FastAPI take seconds, in which no other request is answered."""
    try:
        TranslateBody.model_validate(body)
    except ValidationError as error:
        assert error.error_count() == 1
    for client in started(Service(fake, limits=replace(LIMITS, max_body=2**23))):
        answer = client.post("/translate", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert len(answer.json()["error"]) < 300


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"{", 400, "body: no valid JSON: Expecting property name"),
        (b'{"sources": "\xff"}', 400, "body: no valid JSON: not in UTF-8 at byte 13"),
        (b"[" * 1900, 400, "body: no valid JSON"),
        (b'{"sources": {"en": "\\ud800"}}', 422, "sources.en: the text has half of a surrogate pair"),
        (b'{"sources": {"\\ud800": "a"}}', 422, "sources"),
        (b'{"sources": {"en": "a"}, "n_best": 1' + b"0" * 900 + b"}", 422, "n_best"),
        (b'{"sources": {"en": "a"}, "n_best": NaN}', 422, "n_best: Input should be a valid integer; got nan"),
        (b'{"sources": {"' + b"a" * 1000 + b'": "b"}}', 422, "..."),
        (b" " * 2001, 413, "the body is larger than 2000 bytes"),
    ],
)
def test_a_broken_body_is_answered_in_one_line(client: TestClient, content: bytes, status: int, message: str) -> None:
    answer = client.post("/translate", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]
    assert len(answer.json()["error"]) < 300


def test_a_body_of_the_largest_size_is_read(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    for size, status in ((LIMITS.max_body, 200), (LIMITS.max_body + 1, 413)):
        content = b'{"sources": {"en": "one"}}'.ljust(size)
        assert client.post("/translate", content=content, headers=headers).status_code == status


def test_a_body_of_unknown_length_is_not_read_beyond_its_bound(client: TestClient) -> None:
    sent = []

    def chunks() -> Iterator[bytes]:
        for number in range(10):
            sent.append(number)
            yield b" " * 1000

    answer = client.post("/translate", content=chunks(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_a_body_that_is_not_declared_as_json_is_refused(client: TestClient) -> None:
    """A page in a browser can send plain text to this machine without asking first."""
    answer = client.post("/translate", content=json.dumps({"sources": ROW}), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert answer.json() == {"error": "body: send the header Content-Type: application/json", "field": "body"}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[" * 200_000, "nested too deeply"), (b'{"n_best": 1' + b"0" * 5000 + b"}", "a number has too many digits")],
)
def test_json_that_python_cannot_read_is_refused_by_name(fake: FakeTranslator, content: bytes, message: str) -> None:
    for client in started(Service(fake, limits=replace(LIMITS, max_body=1 << 20))):
        answer = client.post("/translate", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]) == (400, f"body: no valid JSON: {message}")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:8000", 200), ("127.9.9.9", 200), ("[::1]:8000", 200)),
        *(("evil.example", 403), ("evil.example:8000", 403), ("192.0.2.1", 403), ("localhost.evil.example", 403)),
        *(("", 403), ("[::1].evil.example", 403)),
    ],
)
def test_without_a_token_only_names_of_this_machine_are_answered(client: TestClient, host: str, status: int) -> None:
    """A page in a browser may be of a name that suddenly leads to this machine."""
    assert client.get("/languages", headers={"Host": host}).status_code == status
    if status == 403:
        assert "localhost" in client.get("/health", headers={"Host": host}).json()["error"]


def test_with_a_token_any_name_is_answered(fake: FakeTranslator) -> None:
    for client in started(Service(fake, limits=LIMITS), TOKEN):
        headers = {"Host": "translations.example", "Authorization": f"Bearer {TOKEN}"}
        assert client.get("/languages", headers=headers).status_code == 200


def test_unknown_paths_and_methods_are_answered_in_json(client: TestClient) -> None:
    assert client.get("/nothing").json() == {"error": "Not Found"}
    assert client.get("/translate").status_code == 405
    assert {client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")} == {404}


def test_languages_health_and_readiness(client: TestClient) -> None:
    assert client.get("/languages").json() == {"sources": ["en", "de"], "target": "dsb"}
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/ready").json() == {"status": "ok"}


def test_the_token_is_required_but_not_for_what_watches_the_service(fake: FakeTranslator) -> None:
    for client in started(Service(fake, limits=LIMITS), TOKEN):
        for headers in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer"},
            [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")],
        ):
            answer = client.post("/translate", json={"sources": ROW}, headers=headers)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text
        assert client.get("/metrics").status_code == client.get("/languages").status_code == 401
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert fake.batches == []
        headers = {"Authorization": f"bearer {TOKEN}"}
        assert client.post("/translate", json={"sources": ROW}, headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200


def test_a_full_queue_says_when_to_come_again(client: TestClient, fake: FakeTranslator) -> None:
    fake.hold()
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda rows=rows: statuses.append(post(client, sources=rows).status_code))
        for rows in ([{"en": "first"}], [ROW] * 2, [ROW] * 2)
    ]
    threads[0].start()
    fake.wait_until_busy()
    for thread in threads[1:]:
        thread.start()
    wait_for(lambda: client.get("/ready").status_code == 503)
    answer = post(client, sources=ROW)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert "4 rows are waiting" in answer.json()["error"]
    assert client.get("/health").status_code == 200
    fake.free.set()
    for thread in threads:
        thread.join(SECONDS)
    assert statuses == [200, 200, 200]


def wait_for(condition: Any) -> None:
    for _ in range(int(SECONDS * 100)):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("the condition did not become true")


def test_a_request_that_takes_too_long_is_given_up(fake: FakeTranslator) -> None:
    for client in started(Service(fake, limits=replace(LIMITS, time_limit=0.1))):
        fake.hold()
        answer = post(client, sources=ROW)
        assert answer.status_code == 504
        assert answer.json() == {"error": "the translation took longer than 0.1 seconds"}
        waiting = post(client, sources=[{"en": "never"}])
        assert waiting.status_code == 504
        fake.free.set()
        assert post(client, sources={"en": "next"}).status_code == 200
        assert {"en": "never"} not in [row for batch in fake.batches for row in batch]


def test_a_row_that_cannot_be_translated_is_an_error_of_its_request(client: TestClient) -> None:
    answer = post(client, sources={"en": "fail"})
    assert answer.status_code == 500
    assert answer.json() == {"error": "the translation failed; the log of the service says why"}
    assert post(client, sources=ROW).status_code == 200


def test_metrics_count_requests_rows_and_batches(client: TestClient) -> None:
    post(client, sources=[ROW, {"en": "refuse"}])
    post(client, sources={"en": "fail"})
    post(client, sources={"fr": "a"})
    client.get("/somewhere/else")
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'hf_multisource_requests_total{path="/translate",status="200"} 1.0',
        'hf_multisource_requests_total{path="/translate",status="422"} 1.0',
        'hf_multisource_requests_total{path="/translate",status="500"} 1.0',
        'hf_multisource_requests_total{path="other",status="404"} 1.0',
        'hf_multisource_rows_total{outcome="translated"} 1.0',
        'hf_multisource_rows_total{outcome="refused"} 1.0',
        'hf_multisource_rows_total{outcome="failed"} 1.0',
        "hf_multisource_batch_rows_sum 2.0",
        "hf_multisource_queue_rows 0.0",
    ):
        assert line in lines, line
    assert any(line.startswith("process_resident_memory_bytes") for line in lines)


def scope_of(body: bytes) -> dict[str, Any]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/translate",
        "raw_path": b"/translate",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": headers,
        "server": ("x", 80),
        "client": ("y", 1),
    }


def test_a_client_that_disconnects_takes_its_rows_along(fake: FakeTranslator) -> None:
    service = Service(fake, limits=LIMITS)
    app = make_app(service)
    body = json.dumps({"sources": {"en": "gone"}}).encode()
    sent: list[Any] = []

    async def call() -> None:
        disconnected = asyncio.Event()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        request = asyncio.create_task(app(scope_of(body), receive, send))
        while service.batcher.waiting == 0:
            await asyncio.sleep(0.001)
        disconnected.set()
        await request

    fake.hold()
    service.batcher.start()
    first = service.batcher.submit([{"en": "first"}], Options(num_beams=5))
    fake.wait_until_busy()
    asyncio.run(call())
    assert service.batcher.waiting == 0
    fake.free.set()
    assert first.future.result(SECONDS)[0].candidates[0].text == "FIRST"
    service.batcher.close(SECONDS)
    assert fake.batches == [[{"en": "first"}]]
    assert sent[0]["status"] == 499


def test_a_body_that_arrives_too_slowly_is_given_up(fake: FakeTranslator) -> None:
    app = make_app(Service(fake, limits=replace(LIMITS, time_limit=0.05)))
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(SECONDS)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope_of(b"{}"), receive, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_rows": 0}, "max_rows is 0; it must be at least 1"),
        ({"max_queue": 2}, "max_queue is 2; it must be at least 3"),
        ({"max_beams": 1}, "max_beams is 1; it must be at least 2"),
        ({"time_limit": 0}, "time_limit is 0; it must be at least 0.01"),
        ({"max_wait": float("nan")}, "max_wait is nan; it must be at least 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        replace(LIMITS, **changes)
    assert str(error.value) == message


def test_a_search_that_is_not_that_of_the_confidence_is_named(
    fake: FakeTranslator, caplog: pytest.LogCaptureFixture
) -> None:
    Service(fake, confidence=make_confidence(), max_new_tokens=128)
    assert not caplog.messages
    Service(fake, confidence=make_confidence(), max_new_tokens=50)
    assert "(max_new_tokens was 128, is 50), so its probabilities may be wrong" in caplog.text


def test_more_tokens_than_the_model_can_write_are_refused_at_the_start(fake: FakeTranslator) -> None:
    def refuse(max_new_tokens: int | None = None) -> Any:
        raise ValueError("the model has 64 positions")

    fake.search_settings = refuse  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="64 positions"):
        Service(fake, max_new_tokens=100)


def test_a_beam_beyond_the_limits_and_a_confidence_of_other_sources_are_refused(fake: FakeTranslator) -> None:
    with pytest.raises(ValueError, match="num_beams is 7; it must be at least 2 and at most max_beams, 6"):
        Service(fake, num_beams=7, limits=LIMITS)
    with pytest.raises(ValueError, match="the confidence is for the sources cs; the model's are en, de"):
        Service(fake, confidence=make_confidence(sources=("cs",)), limits=LIMITS)
