"""Reads files of retention rules, in JSON or YAML; errors name the line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import yaml

from lakegc_assets.retention.retain_rules import Retain
from lakegc_assets.retention.rules import DefaultRules, Rules, RulesError

_V = TypeVar("_V")


def parse_rules(text: str, name: str) -> Rules:
    """Read the rules of a file.

    Args:
        text: content of the file, in the form of ``Rules.parse``. JSON is YAML, too.
        name: name of the file, for messages.

    Raises:
        RulesError: the form is wrong; the message has the line and the key.
    """
    return _parsed(text, name, Rules.parse, "default_retention_days and branches are missing")


def parse_retain(text: str, name: str) -> Retain:
    """Read rules in the form of ``Retain.parse``, as ``parse_rules`` does."""
    return _parsed(text, name, Retain.parse, "write {} where nothing more is to be kept")


def parse_default_rules(text: str, name: str) -> DefaultRules:
    """Read rules in the form of ``DefaultRules.parse``, as ``parse_rules`` does."""
    return _parsed(text, name, DefaultRules.parse, "write a list of rules, each with repositories")


def _parsed(text: str, name: str, parse: Callable[[object], _V], missing: str) -> _V:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise RulesError(f"{name} is empty: {missing}")
        _require_once(node, name)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f", line {mark.line + 1}"
        raise RulesError(f"{name}{at}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise RulesError(f"{name}: {error}") from error
    try:
        return parse(value)
    except RulesError as error:
        line = _line(node, error.path)
        raise RulesError(f"{name}, line {line}: {error}", error.path) from error


def _require_once(node: yaml.Node, name: str) -> None:
    """Refuse a duplicate key: YAML would use the last one."""
    for mapping in _mappings(node):
        seen: set[str] = set()
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise RulesError(
                    f"{name}, line {key.start_mark.line + 1}: {key.value} is given twice"
                )
            seen.add(key.value)


def _mappings(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Yield all mappings, each once: aliases may lead to one in many ways, or back to itself."""
    waiting, met = [node], {id(node)}
    while waiting:
        node = waiting.pop()
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            yield node
            inner = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        waiting += [one for one in inner if id(one) not in met]
        met |= {id(one) for one in inner}


def _line(node: yaml.Node, path: Sequence[str | int]) -> int:
    """Return the line to which keys and indexes lead, as far as they exist; the first is 1."""
    line = node.start_mark.line
    for step in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
            line = node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(step)]
            if not found:
                break
            line, node = found[0][0].start_mark.line, found[0][1]
    return line + 1
