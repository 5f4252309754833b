"""Alembic's entry: runs revisions on the connection, and in the transaction, that it is handed."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
