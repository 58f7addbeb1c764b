-- the random word of the last renewal: a copy of the holder, as from a snapshot of its machine, does not know it
ALTER TABLE attempts ADD COLUMN renewal TEXT;
