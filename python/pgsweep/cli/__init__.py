"""The command line: one file per subcommand; parse, call one feature, hand the record to ui."""
