// Command empty does nothing: what any Go program costs that does something.
package main

func main() {}
