"""How much each principal has stored is counted from an index alone."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.drop_index("response_person", "response")
    op.create_index(
        "response_person", "response", ["tenant", "issuer", "user", "project", "sealed_bytes"]
    )
