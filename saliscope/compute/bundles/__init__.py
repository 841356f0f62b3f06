"""Links, records and bundles, which store a result so that it can be reproduced."""
