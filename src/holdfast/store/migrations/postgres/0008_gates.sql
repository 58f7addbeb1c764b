-- which tool calls of a session wait for a person, as JSON: whoever runs its turns, and wherever
ALTER TABLE sessions ADD COLUMN approve_tools TEXT;
