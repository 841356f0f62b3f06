"""The view "Concepts"."""
