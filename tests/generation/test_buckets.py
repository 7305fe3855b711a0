from trl_ext.generation.buckets import LEAST_LENGTH, length_bucket, rows_bucket


def test_a_bucket_holds_its_length_wastes_at_most_a_quarter_and_there_are_few():
    for tokens in range(1, 9000):
        assert tokens <= length_bucket(tokens) <= max(1.25 * tokens, tokens + LEAST_LENGTH)
        assert length_bucket(length_bucket(tokens)) == length_bucket(tokens)
    assert len({length_bucket(tokens) for tokens in range(1, 9000)}) < 30


def test_fewer_rows_take_the_same_batch_or_a_quarter_of_it():
    assert [rows_bucket(rows, 64) for rows in (64, 60, 17, 16, 15, 4, 3, 1)] == [64, 64, 64, 16, 16, 4, 4, 1]
    assert rows_bucket(80, 64) == 80
