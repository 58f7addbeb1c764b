-- True: the head is any runtime's in the end, and head_runtime_id's at first. Once it is ready, wake_at says
-- until when.
ALTER TABLE sessions ADD COLUMN head_kept INTEGER;
