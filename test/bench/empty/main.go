// Command empty does nothing. It measures the cost of starting any Go program.
package main

func main() {}
