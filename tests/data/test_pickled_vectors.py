import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from denseir_jax.core.errors import InputError
from denseir_jax.data import pickled_vectors

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
IDS = ["wiki:1", "b", "c", "d"]


def as_numpy_1(content: bytes) -> bytes:
    """The pickle that numpy 1 writes: it names the module without the underscore. Protocols 0 to 2 name modules in plain text."""
    return content.replace(b"numpy._core.", b"numpy.core.")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["<f4", "<f2", ">f8"])
def test_dpr_and_tevatron(tmp_path, protocol, dtype):
    vectors = VECTORS.astype(dtype)
    forms = {
        "dpr": list(zip(IDS, vectors, strict=True)),
        "tevatron": (vectors, IDS),
        "by columns": (np.asfortranarray(vectors), tuple(IDS)),
        "ids in an array": (vectors, np.array(IDS)),
        "ids as objects": (vectors, np.array(IDS, object)),
    }
    for name, content in forms.items():
        packed = pickle.dumps(content, protocol)
        for version in (packed, as_numpy_1(packed)) if protocol < 3 else (packed,):
            (tmp_path / "p").write_bytes(version)
            ids, read = pickled_vectors.read(str(tmp_path / "p"))
            assert ids == IDS, name
            assert read.dtype == np.dtype(dtype).newbyteorder("=")
            np.testing.assert_array_equal(read, vectors, err_msg=name)


def test_whole_numbers_become_strings(tmp_path):
    for ids in ([7, 8, 9, 10], np.array([7, 8, 9, 10]), [np.int64(n) for n in (7, 8, 9, 10)]):
        (tmp_path / "p").write_bytes(pickle.dumps((VECTORS, ids)))
        assert pickled_vectors.read(str(tmp_path / "p"))[0] == ["7", "8", "9", "10"]


class Evil:
    def __init__(self, call, *arguments):
        self.call = (call, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_would_run_something_is_refused(tmp_path, protocol):
    for call in (
        Evil(os.system, f"touch {tmp_path / 'ran'}"),
        Evil(eval, f"open({str(tmp_path / 'ran')!r}, 'w')"),
        Evil(getattr, "x", "upper"),
        Evil(np.load, "x"),
        Evil(np.fromfile, "/dev/zero"),
    ):
        (tmp_path / "p").write_bytes(pickle.dumps([("a", call)], protocol))
        with pytest.raises(InputError, match=r"p holds no pickled vectors: it asks for .*; expected numpy arrays, lists"):
            pickled_vectors.read(str(tmp_path / "p"))
    assert not (tmp_path / "ran").exists()


def test_a_pickle_cannot_change_what_it_may_call(tmp_path):
    for name in ("cnumpy.core.multiarray\nscalar\n", "c_codecs\nencode\n", "cnumpy\ndtype\n", "cnumpy\nndarray\n"):
        (tmp_path / "p").write_bytes(f"{name}}}S'__doc__'\nS'changed'\nsb.".encode())
        with pytest.raises(InputError, match="holds no pickled vectors"):
            pickled_vectors.read(str(tmp_path / "p"))
    assert not any(meant.__doc__ == "changed" for meant in pickled_vectors._KNOWN.values())


def test_every_name_that_is_known_builds_data_alone():
    """What stands behind each name is a class or a function of this module, never the thing named."""
    for place, meant in pickled_vectors._KNOWN.items():
        assert meant.__module__ == pickled_vectors.__name__, place


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": VECTORS}, "something else; expected a list of"),
        ((VECTORS, IDS[:3]), "3 ids and 4 vectors"),
        ((VECTORS, [*IDS[:3], "b"]), "4 ids, 3 of them different; expected one or more, each once"),
        ((VECTORS, [*IDS[:3], "d e"]), "the id 'd e'"),
        ((VECTORS * np.float32(np.nan), IDS), "the vector of 'wiki:1' is not finite"),
        ((VECTORS.astype(np.int32), IDS), "2 axes of int32; expected 2 of floats"),
        ((VECTORS[0], IDS), "1 axes of float32; expected 2"),
        ((np.array([1, "x"], object), IDS), "an array with objects"),
        ([("a", VECTORS[0]), ("b", VECTORS[0][:2])], "same shape"),
        ([], "holds 0 ids"),
        ((np.zeros(2, [("x", "f4")]), IDS), "it holds an array of 'V4'"),
    ],
)
def test_other_pickles(tmp_path, content, message):
    (tmp_path / "p").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=message):
        pickled_vectors.read(str(tmp_path / "p"))


def test_damaged_pickles_are_one_line(tmp_path):
    whole = pickle.dumps((VECTORS, IDS), 4)
    path = Path(tmp_path / "p")
    for content in (b"", whole[: len(whole) // 2], whole[:-1], b"not a pickle", b"\x80\x04." + whole):
        path.write_bytes(content)
        with pytest.raises(InputError, match="holds no pickled vectors"):
            pickled_vectors.read(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        pickled_vectors.read(str(tmp_path / "none"))
