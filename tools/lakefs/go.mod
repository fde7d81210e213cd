module lakegc/tests/lakefs

go 1.26.4

require github.com/treeverse/lakefs v1.84.0

replace github.com/csimplestring/delta-go => github.com/treeverse/delta-go v0.0.0-20260323095047-d2f80252d945
