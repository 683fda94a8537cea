"""The machinery for Weblate, on a stand-in of Weblate's base class, asks the real application."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from fake_translator import FakeTranslator, make_confidence
from hf_multisource.serving.application import make_app
from hf_multisource.serving.service import Service

FILE = Path(__file__).resolve().parents[2] / "training/weblate/hf_multisource_machinery.py"
TOKEN = "a-secret-of-many-letters"
TRANSLATED, FUZZY = 20, 10  # states of Weblate's units
RESULT = {"translation": "text", "quality": "quality"}  # keys of a unit's result, and of a suggestion


@dataclass
class Language:
    code: str


@dataclass
class Plural:
    number: int


@dataclass
class Translation:
    language: Language
    plural: Plural


@dataclass
class UnitSet:
    units: list[Unit]

    def filter(self, *, state__gte: int) -> UnitSet:
        return UnitSet([unit for unit in self.units if unit.state >= state__gte])

    def select_related(self, name: str) -> UnitSet:
        assert name == "translation__language"
        return self

    def order_by(self, name: str) -> list[Unit]:
        assert name == "translation__language__code"
        return sorted(self.units, key=lambda unit: unit.code)


@dataclass
class Unit:
    """The part of Weblate's `Unit` that the machinery reads."""

    code: str
    target: str = ""
    state: int = TRANSLATED
    texts: list[str] = field(default_factory=lambda: ["Open"])
    others: list[Unit] = field(default_factory=list)
    machinery: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return "\x1e\x1e".join(self.texts)

    @property
    def translation(self) -> Translation:
        return Translation(Language(self.code), Plural(4 if self.code == "dsb" else 2))

    @property
    def source_unit(self) -> Any:
        return type("SourceUnit", (), {"unit_set": UnitSet(self.others)})

    def get_source_plurals(self) -> list[str]:
        return self.texts


class Machinery:
    """What `weblate.machinery.base.BatchMachineTranslation` of Weblate 2026.10.1 offers; requests go to `client`."""

    client: TestClient
    max_score = 100
    language_map: dict[str, str] = {}

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.known: set[str] | None = None

    def delete_cache(self) -> None:
        self.known = None

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
        if self.known is None:
            self.known = set(self.download_languages())
        return self.known

    def download_multiple_translations(
        self, source: str, target: str, texts: list[tuple[str, Any]], user: Any, threshold: int
    ) -> dict[str, list[dict[str, Any]]]:
        raise NotImplementedError

    def translate(self, unit: Unit, user: Any = None, threshold: int = 80) -> list[list[dict[str, Any]]]:
        texts = [(text, unit) for text in unit.texts]
        found = self.download_multiple_translations("en", unit.code, texts, user, threshold)
        return [found[text] for text in unit.texts]

    async def atranslate(self, unit: Unit, user: Any = None, threshold: int = 80) -> list[list[dict[str, Any]]]:
        return await asyncio.to_thread(Machinery.translate, self, unit, user, threshold)

    def batch_translate(self, units: list[Unit], user: Any = None, threshold: int = 80) -> None:
        """Translate each text once, for the last unit that has it."""
        last = {text: unit for unit in units for text in unit.texts}
        found = self.download_multiple_translations("en", units[0].code, list(last.items()), user, threshold)
        for unit in units:
            best = [found[text][0] if found[text] else {"text": "", "quality": 0} for text in unit.texts]
            unit.machinery = {key: [form[name] for form in best] for key, name in RESULT.items()}

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
        Unit("de_AT", "Aufmachen"),
        Unit("de", "Öffnen"),
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
    plural = Unit("dsb", texts=["%d file", "%d files"], others=[Unit("de", "%d Datei\x1e\x1e%d Dateien")])
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
        assert found["quality"] == math.floor(100 * expected)
        assert found["show_quality"]
        above = found["quality"] + 1
        assert machinery.download_multiple_translations("en", "dsb", [("Open", None)], threshold=above) == {"Open": []}


@pytest.mark.parametrize(("confidence", "quality"), [(0.796, 79), (0.8, 80), (0.29, 29), (1.0, 100), (0.0, 0)])
def test_a_confidence_below_the_threshold_is_not_rounded_up_to_it(
    machinery: Any, confidence: float, quality: int
) -> None:
    answer = {"candidates": [{"text": "Wócyniś"}], "confidence": confidence}
    (found,) = machinery.suggestions("Open", answer, quality)
    assert found["quality"] == quality
    assert [*machinery.suggestions("Open", answer, quality + 1)] == []


def test_a_wrong_token_and_an_unknown_target_are_errors_of_the_settings(plugin: Any, fake: FakeTranslator) -> None:
    for machinery in machinery_of(plugin, Service(fake, target="dsb"), key="wrong"):
        with pytest.raises(ValidationError, match=r"Could not fetch supported languages: .*401"):
            machinery.validate_settings()
    for machinery in machinery_of(plugin, Service(fake)):
        with pytest.raises(ValidationError, match="start it with --target"):
            machinery.validate_settings()


@pytest.mark.parametrize(
    "answer", ['<html lang="en">', '[{"code": "en", "targets": ["de"]}]', '{"languages": ["en"]}', "null"]
)
def test_the_address_of_another_service_is_an_error_of_the_settings(plugin: Any, answer: str) -> None:
    plugin.client = httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200, text=answer)))
    with pytest.raises(ValidationError, match="http://testserver does not answer like `hf-multisource serve`"):
        plugin({"url": "http://testserver", "key": TOKEN}).validate_settings()


def test_saving_the_settings_forgets_the_languages_of_the_last_model(machinery: Any) -> None:
    machinery.known = {"fr>dsb"}
    machinery.validate_settings()
    assert machinery.is_supported("en", "dsb")


def test_strings_with_the_same_source_are_translated_from_their_own_languages(
    machinery: Any, fake: FakeTranslator
) -> None:
    texts = ["Öffnen", "Offen"]
    units = [Unit("dsb", others=[Unit("de", text)]) for text in texts]
    machinery.batch_translate([*units, Unit("dsb", texts=["Close"])])
    assert fake.batches == [[{"en": "Open", "de": "Öffnen"}, {"en": "Close"}], [{"en": "Open", "de": "Offen"}]]
    assert [unit.machinery["translation"] for unit in units] == [["OPEN | ÖFFNEN"], ["OPEN | OFFEN"]]


def test_automatic_translation_needs_as_many_plural_forms_as_the_source_has(plugin: Any, fake: FakeTranslator) -> None:
    plural = ["%d file", "%d files"]
    for machinery in machinery_of(plugin, Service(fake, target="dsb")):
        unit = Unit("dsb", texts=plural)
        machinery.batch_translate([unit])
        assert (unit.machinery, fake.batches) == ({}, [])
    for machinery in machinery_of(plugin, Service(fake, target="de")):
        unit = Unit("de", texts=plural)
        machinery.batch_translate([unit])
        assert unit.machinery["translation"] == ["%D FILE", "%D FILES"]


def test_the_editor_shows_suggestions_below_the_threshold_of_automatic_translation(
    plugin: Any, fake: FakeTranslator
) -> None:
    for machinery in machinery_of(plugin, Service(fake, confidence=make_confidence(), target="dsb")):
        unit = Unit("dsb")
        ((found,),) = machinery.translate(unit)
        assert 10 <= found["quality"] < 80
        assert asyncio.run(machinery.atranslate(unit)) == [[found]]
        machinery.batch_translate([unit])
        assert unit.machinery["quality"] == [0]
