"""The datasets of texts and of videos: what a sample is."""

from pathlib import Path

import numpy as np
import pytest

from smalti.compat.streaming.multimodal import (
    StreamingInsideWebVid,
    StreamingOutsideDTWebVid,
    StreamingOutsideGIWebVid,
)
from smalti.compat.streaming.text import StreamingC4, StreamingEnWiki, StreamingPile
from smalti.errors import StoreError
from smalti.writer import MDSWriter


def write(out, columns, samples):
    with MDSWriter(out=out, columns=columns) as writer:
        for sample in samples:
            writer.write(sample)
    return str(out)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return the folder of a tokenizer of four words, which has no token for padding, as GPT-2's has none."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<end>": 0, "one": 1, "two": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="?").save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", [StreamingC4, StreamingPile])
def test_a_text_is_cut_or_padded_to_tokens(tmp_path, tokenizer, kind):
    place = write(tmp_path / "set", {"text": "str"}, [{"text": "one two"}, {"text": "two one other two one"}])
    how = {"tokenizer_name": tokenizer, "max_seq_len": 4, "group_method": "truncate"}
    dataset = kind(local=place, batch_size=1, num_canonical_nodes=1, **how)
    assert [sample["input_ids"] for sample in dataset] == [[1, 2, 0, 0], [2, 1, 3, 2]]
    assert dataset[0]["attention_mask"] == [1, 1, 0, 0]
    assert (dataset.max_seq_len, dataset.group_method, dataset.tokenizer.pad_token) == (4, "truncate", "<end>")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (StreamingC4, r"^group_method='concat' must be one of \{'truncate'\}\.$"),
        (StreamingPile, r'^Only group_method="truncate" is supported at this time\. Found group_method=.concat'),
    ],
)
def test_another_way_of_grouping_is_refused_before_anything_is_read(kind, says):
    with pytest.raises(ValueError, match=says):
        kind(local="nowhere", tokenizer_name="nobody/nothing", max_seq_len=4, group_method="concat")


def test_masked_tokens_get_their_labels(tmp_path):
    ids = {"input_ids": [5, 6, 7], "input_mask": [1, 1, 0], "segment_ids": [0, 1, 1], "masked_lm_positions": [0, 2],
           "masked_lm_ids": [50, 70], "next_sentence_labels": [1]}  # fmt: skip
    sample = {name: np.array(values, np.int32).tobytes() for name, values in ids.items()}
    sample["masked_lm_weights"] = np.ones(2, np.float32).tobytes()
    found = StreamingEnWiki(local=write(tmp_path / "set", dict.fromkeys(sample, "bytes"), [sample]))[0]
    assert {name: values.tolist() for name, values in found.items()} == {
        "input_ids": [5, 6, 7], "token_type_ids": [0, 1, 1], "attention_mask": [1, 1, 0], "labels": [50, -100, 70],
    }  # fmt: skip
    assert all(values.flags.writeable for values in found.values())


@pytest.fixture
def videos(tmp_path):
    (tmp_path / "videos" / "a").mkdir(parents=True)
    (tmp_path / "videos" / "a" / "1.mp4").write_bytes(b"moving")
    rows = [{"content_path": path} for path in ("a/1.mp4", "a/2.mp4", "../secret", str(tmp_path / "secret"))]
    (tmp_path / "secret").write_text("not for readers of videos")
    return write(tmp_path / "set", {"content_path": "str"}, rows)


@pytest.mark.parametrize("kind", [StreamingOutsideGIWebVid, StreamingOutsideDTWebVid])
def test_a_video_beside_the_shards_is_fetched_once_and_kept(tmp_path, videos, kind):
    places = {"extra_local": str(tmp_path / "kept"), "extra_remote": str(tmp_path / "videos")}
    dataset = kind(local=videos, **places)
    assert dataset[0] == {"content_path": "a/1.mp4", "content": b"moving"}
    assert [file.name for file in (tmp_path / "kept" / "a").iterdir()] == ["1.mp4"]
    (tmp_path / "videos" / "a" / "1.mp4").unlink()
    assert dataset[0]["content"] == b"moving"
    assert (dataset.extra_local, dataset.extra_remote) == (places["extra_local"], places["extra_remote"])


def test_a_video_that_is_not_there_or_outside_its_folder_is_refused(tmp_path, videos):
    kept = tmp_path / "kept"
    dataset = StreamingOutsideGIWebVid(local=videos, extra_local=str(kept), extra_remote=str(tmp_path / "videos"))
    with pytest.raises(StoreError, match=r"2\.mp4"):
        dataset[1]
    for number in (2, 3):
        with pytest.raises(StoreError, match="is not allowed"):
            dataset[number]
    assert [path for path in kept.rglob("*") if Path(path).is_file()] == []


def test_without_a_place_of_videos_samples_are_those_of_the_shards(videos):
    assert StreamingOutsideGIWebVid(local=videos)[1] == {"content_path": "a/2.mp4"}
    assert StreamingInsideWebVid(local=videos)[1] == {"content_path": "a/2.mp4"}
