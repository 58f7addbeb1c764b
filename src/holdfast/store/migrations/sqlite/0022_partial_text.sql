-- what the running attempt is writing: overwritten while it writes, gone when it ends
ALTER TABLE sessions ADD COLUMN partial_text TEXT;
