"""Keys of bulk deletes are in the XML as they are: another key would be another object."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from lakegc_assets.storage.opening import open_store
from lakegc_assets_tests.storage.conftest import Answer, Script
from lakegc_assets_tests.storage.s3_answers import delete_result


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("a&<>\"' ü]]>&amp;", id="what XML escapes"),
        pytest.param("a\nb", id="a line end"),
        pytest.param("a\tb", id="a tab"),
    ],
)
def test_a_request_names_each_key_as_it_is(script: Script, key: str) -> None:
    script.answers = [Answer(body=delete_result())]
    open_store("s3://b", script.config()).delete_many([key, "z"])
    found = [element.text for element in ET.fromstring(script.bodies[0]).iter() if element.text]
    assert [text for text in found if text in {key, "z"}] == [key, "z"]
    assert b"\n" not in script.bodies[0]
