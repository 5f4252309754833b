"""What is remembered about tenants: directory, book (money, SQL) and tempo (rates, leases)."""
