"""The built example lab, as the course's own tests have it."""

from tests.course.conftest import built_root, course

__all__ = ["built_root", "course"]
