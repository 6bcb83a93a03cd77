"""SentencePiece models with pieces that are found in the text and never divided."""

from sentencepiece import sentencepiece_model_pb2

from t2t_flax.data.tokenizers import SentencePieceTokenizer


def with_whole_piece(tokenizer: SentencePieceTokenizer, piece: str) -> SentencePieceTokenizer:
    """Return the tokenizer with another piece, as after training with `--user_defined_symbols`."""
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.data)
    model.pieces.add(piece=piece, score=0.0, type=model.SentencePiece.USER_DEFINED)
    return SentencePieceTokenizer(model.SerializeToString())
