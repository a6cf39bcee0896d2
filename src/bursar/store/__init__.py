"""PostgreSQL: where the books are kept between one decision and the next."""
