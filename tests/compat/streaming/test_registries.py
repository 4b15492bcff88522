"""Registries of classes by name: what code registers, what installed packages offer, and what is made from them."""

import sys

import pytest

from smalti.compat.streaming.base.registry_utils import (
    construct_from_registry,
    create_registry,
    import_file,
    save_registry,
)


class Painter:
    def __init__(self, colour="red"):
        self.colour = colour


def paint(colour):
    return f"painted {colour}"


@pytest.fixture
def registry():
    """A registry whose content is forgotten after the test."""
    with save_registry():
        yield create_registry(
            "tests", "painters", generic_type=type[Painter], entry_points=True, description="painters"
        )


def test_what_is_registered_is_found_by_its_name(registry):
    assert registry.register("painter", func=Painter) is Painter
    registry.register("paint")(paint)
    registry("other", Painter)
    registry.register_class("last", func=Painter)
    assert registry.get("painter") is Painter
    assert set(registry.get_all()) == {"painter", "paint", "other", "last"}
    assert "paint" in registry
    assert "chisel" not in registry
    registry.register("paint", func=Painter)
    assert registry.get("paint") is Painter


def test_the_source_of_what_is_registered_is_found(registry):
    registry.register("paint", func=paint)
    found = registry.find("paint")
    assert (found["module"], found["file"], found["docstring"]) == (__name__, __file__, None)
    assert found["line_no"] == paint.__code__.co_firstlineno
    registry.register("number", func=int)
    assert registry.find("number")["file"] is registry.find("number")["line_no"] is None, "it is compiled"


def test_an_unknown_name_is_a_value_error_that_lists_the_known_ones(registry):
    registry.register("painter", func=Painter)
    with pytest.raises(ValueError, match=r"'chisel' in registry tests -> painters\. Available names: painter"):
        registry.get("chisel")


def test_registries_do_not_see_each_others_names_and_a_taken_namespace_is_refused(registry):
    registry.register("painter", func=Painter)
    other = create_registry("tests", "sculptors", generic_type=type[Painter])
    assert "painter" not in other
    with pytest.raises(ValueError, match="exists"):
        create_registry("tests", "painters", "painter", generic_type=type[Painter])


def test_what_was_registered_since_is_forgotten_at_the_end_of_a_block(registry):
    registry.register("before", func=Painter)
    with save_registry():
        registry.register("inside", func=Painter)
    assert set(registry.get_all()) == {"before"}


def test_entry_points_of_installed_packages_come_first(registry, tmp_path, monkeypatch):
    info = tmp_path / "studio-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: studio\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tests_painters]\npainter = studio:Guest\n")
    (tmp_path / "studio.py").write_text("class Guest: pass\n")
    registry.register("painter", func=Painter)
    assert registry.get("painter") is Painter
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert registry.get("painter").__name__ == "Guest"
        assert registry.get_entry_points()["painter"].__name__ == "Guest"
        assert registry.get_entry_point("nobody", Painter) is Painter
        assert "painter" in registry
    finally:
        sys.modules.pop("studio", None)


def test_classes_are_instantiated_and_functions_get_their_arguments_bound(registry):
    registry.register("painter", func=Painter)
    registry.register("paint", func=paint)
    checked = []
    painter = construct_from_registry("painter", registry, True, Painter, checked.append, kwargs={"colour": "blue"})
    assert (painter.colour, checked) == ("blue", [painter])
    assert construct_from_registry("paint", registry, kwargs={"colour": "green"})() == "painted green"
    assert (
        construct_from_registry("paint", registry, partial_function=False, kwargs={"colour": "grey"}) == "painted grey"
    )


@pytest.mark.parametrize(
    ("value", "check", "words"),
    [
        (Painter, int, "to be of type"),
        (paint, Painter, "to be of type"),
        (paint, 5, "callable or a type"),
        (7, None, "class or function"),
    ],
)
def test_what_is_of_another_kind_is_refused(registry, value, check, words):
    registry.register("thing", func=value)
    with pytest.raises(ValueError, match=words):
        construct_from_registry("thing", registry, pre_validation_function=check)


def test_a_file_is_run_and_its_errors_name_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        import_file(tmp_path / "absent.py")
    (tmp_path / "good.py").write_text("colour = 'red'\n")
    assert import_file(str(tmp_path / "good.py")).colour == "red"
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(RuntimeError, match=r"bad\.py"):
        import_file(tmp_path / "bad.py")
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(RuntimeError, match=r"ends in \.py"):
        import_file(tmp_path / "text.txt")
