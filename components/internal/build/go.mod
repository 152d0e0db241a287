module github.com/rootlessnode/rootlessnode/components/internal/build

go 1.26.0
