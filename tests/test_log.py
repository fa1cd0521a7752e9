import io
import json
import logging

import pytest

from mstar_core import log
from mstar_core.errors import ConfigurationError


@pytest.fixture
def logged():
    """Logs in a format and gives back what was written; the process's logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def write(format, *, request=None, message="hello", error=None):
        stream = io.StringIO()
        log.configure(format, "info", stream)
        token = log.request_id.set(request)
        logging.getLogger("mstar_core.test").info(message, exc_info=error)
        log.request_id.reset(token)
        return stream.getvalue()

    yield write
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_record_has_level_logger_request_and_message(logged):
    assert logged("text", request="a-1").endswith(" INFO mstar_core.test [a-1] hello\n")


def test_text_record_without_a_request_names_none(logged):
    assert logged("text").endswith(" INFO mstar_core.test hello\n")


def test_text_record_is_one_line_whatever_a_client_wrote(logged):
    assert logged("text", message="a\r\n2026 ERROR forged").count("\n") == 1


def test_json_record_is_one_object_a_line(logged):
    fields = json.loads(logged("json", request="a-1", message="a\nb"))
    assert fields.pop("time").endswith("+00:00")
    assert fields == {"level": "info", "logger": "mstar_core.test", "message": "a\nb", "request_id": "a-1"}


@pytest.mark.parametrize("format", log.LOG_FORMATS)
def test_record_with_an_exception_holds_its_traceback(logged, format):
    try:
        raise ValueError("boom")
    except ValueError as error:
        text = logged(format, error=error)
    assert "Traceback" in text
    assert "ValueError: boom" in text


def test_unknown_format_or_level_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean 'json'"):
        log.configure("jsn")
    with pytest.raises(ConfigurationError, match="did you mean 'warning'"):
        log.configure("text", "warn")
