"""Loading: against COPY, pgloader and the bare limit; crashes at random points; the splitter."""
