"""The machinery for Weblate, on a stand-in of Weblate's base class, asks the real application."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi.testclient import TestClient

from fake_translator import FakeTranslator, make_confidence
from hf_multisource.serving.application import make_app
from hf_multisource.serving.service import Service

FILE = Path(__file__).resolve().parents[2] / "training/weblate/hf_multisource_machinery.py"
TOKEN = "a-secret-of-many-letters"
TRANSLATED, FUZZY = 20, 10  # states of Weblate's units


@dataclass
class Language:
    code: str


@dataclass
class Translation:
    language: Language


@dataclass
class UnitSet:
    units: list[Unit]

    def filter(self, *, state__gte: int) -> UnitSet:
        return UnitSet([unit for unit in self.units if unit.state >= state__gte])

    def select_related(self, name: str) -> list[Unit]:
        assert name == "translation__language"
        return self.units


@dataclass
class Unit:
    """The part of Weblate's `Unit` that the machinery reads."""

    code: str
    target: str = ""
    state: int = TRANSLATED
    source: list[str] = field(default_factory=lambda: ["Open"])
    others: list[Unit] = field(default_factory=list)

    @property
    def translation(self) -> Translation:
        return Translation(Language(self.code))

    @property
    def source_unit(self) -> Any:
        return type("SourceUnit", (), {"unit_set": UnitSet(self.others)})

    def get_source_plurals(self) -> list[str]:
        return self.source


class Machinery:
    """What `weblate.machinery.base.BatchMachineTranslation` of Weblate 5.12 offers; requests go to `client`."""

    client: TestClient
    max_score = 100
    language_map: dict[str, str] = {}

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def get_api_url(self, *parts: str) -> str:
        return "/".join([self.settings["url"].rstrip("/"), *parts])

    def request(self, method: str, url: str, **options: Any) -> Any:
        response = self.client.request(method, url, headers=self.get_headers(), **options)
        response.raise_for_status()
        return response

    def get_headers(self) -> dict[str, str]:
        raise NotImplementedError

    def download_languages(self) -> list[str]:
        raise NotImplementedError

    @property
    def supported_languages(self) -> set[str]:
        return set(self.download_languages())

    def get_language_possibilities(self, language: Language) -> Iterator[str]:
        code = language.code
        yield code
        while "_" in code:
            code = code.rsplit("_", 1)[0]
            yield code


class ValidationError(Exception):
    """Stands in for Django's."""


class MachineTranslationError(Exception):
    """Stands in for Weblate's."""


def stand_in(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    base = {"BatchMachineTranslation": Machinery, "MachineTranslationError": MachineTranslationError}
    for module in (
        *(stand_in(name) for name in ("django", "django.core", "weblate", "weblate.machinery", "weblate.utils")),
        stand_in("django.core.exceptions", ValidationError=ValidationError),
        stand_in("weblate.machinery.base", **base),
        stand_in("weblate.machinery.forms", KeyURLMachineryForm=object),
        stand_in("weblate.utils.state", STATE_TRANSLATED=TRANSLATED),
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("hf_multisource_machinery", FILE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.MultiSourceTranslation


def machinery_of(plugin: Any, service: Service, key: str = TOKEN) -> Iterator[Any]:
    with TestClient(make_app(service, TOKEN)) as client:
        plugin.client = client
        yield plugin({"url": "http://testserver/", "key": key})


@pytest.fixture
def fake() -> FakeTranslator:
    return FakeTranslator()


@pytest.fixture
def machinery(plugin: Any, fake: FakeTranslator) -> Iterator[Any]:
    yield from machinery_of(plugin, Service(fake, target="dsb"))


def test_it_supports_the_sources_and_the_target_of_the_service(machinery: Any) -> None:
    machinery.validate_settings()
    assert machinery.is_supported("en", "dsb")
    assert machinery.is_supported("de", "dsb")
    assert not machinery.is_supported("dsb", "en")
    assert not machinery.is_supported("en", "de")
    assert not machinery.is_rate_limit_error(Exception("503"))


def test_a_string_is_sent_in_all_languages_that_the_service_reads(machinery: Any, fake: FakeTranslator) -> None:
    others = [
        Unit("en", "Open!"),
        Unit("de_AT", "Öffnen"),
        Unit("cs", "Otevřít"),
        Unit("dsb", ""),
    ]
    found = machinery.download_multiple_translations(
        "en", "dsb", [("Open", Unit("dsb", others=others)), ("Close", Unit("dsb", others=[Unit("de", "Zu", FUZZY)]))]
    )
    assert fake.batches == [[{"en": "Open", "de": "Öffnen"}, {"en": "Close"}]]
    assert found["Open"] == [
        {"text": "OPEN | ÖFFNEN", "quality": 90, "show_quality": False, "service": "hf_multisource", "source": "Open"}
    ]
    assert found["Close"][0]["text"] == "CLOSE"


def test_plural_forms_and_texts_without_a_unit_are_sent_in_one_language(machinery: Any, fake: FakeTranslator) -> None:
    plural = Unit("dsb", source=["%d file", "%d files"], others=[Unit("de", "%d Datei\x1e\x1e%d Dateien")])
    machinery.download_multiple_translations("en", "dsb", [("%d files", plural), ("test", None)])
    assert fake.batches == [[{"en": "%d files"}, {"en": "test"}]]


def test_what_is_refused_blank_or_too_long_has_no_suggestion(machinery: Any, fake: FakeTranslator) -> None:
    texts = ["refuse", " ", "a" * 5001, "fine"]
    found = machinery.download_multiple_translations("en", "dsb", [(text, None) for text in texts])
    assert [len(found[text]) for text in texts] == [0, 0, 0, 1]
    assert fake.batches == [[{"en": "refuse"}, {"en": "fine"}]]
    assert machinery.download_multiple_translations("en", "dsb", [(" ", None)]) == {" ": []}


def test_the_confidence_is_the_quality_and_the_threshold_is_kept(plugin: Any, fake: FakeTranslator) -> None:
    confidence = make_confidence()
    service = Service(fake, confidence=confidence, target="dsb")
    for machinery in machinery_of(plugin, service):
        (found,) = machinery.download_multiple_translations("en", "dsb", [("Open", None)], threshold=10)["Open"]
        expected = confidence.probability({"en": "Open"}, fake.translate([{"en": "Open"}], n_best=2)[0])
        assert found["quality"] == round(100 * expected)
        assert found["show_quality"]
        above = found["quality"] + 1
        assert machinery.download_multiple_translations("en", "dsb", [("Open", None)], threshold=above) == {"Open": []}


def test_a_wrong_token_and_an_unknown_target_are_errors_of_the_settings(plugin: Any, fake: FakeTranslator) -> None:
    for machinery in machinery_of(plugin, Service(fake, target="dsb"), key="wrong"):
        with pytest.raises(ValidationError, match=r"Could not fetch supported languages: .*401"):
            machinery.validate_settings()
    for machinery in machinery_of(plugin, Service(fake)):
        with pytest.raises(ValidationError, match="start it with --target"):
            machinery.validate_settings()
