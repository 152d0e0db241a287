package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// forwardedTable contains the additional rule. Upstream recreates its own table on
// every change, so the rule cannot be in that table.
const forwardedTable = "kube-network-policies-forwarded"

// triedTable is never visible: it is added and deleted in one transaction.
const triedTable = "kube-network-policies-tried"

// tryQueue checks that the kernel supports rules with a queue and the queue itself.
func tryQueue(queue uint16) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := c.AddTable(&nftables.Table{Name: triedTable, Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{Name: "tried", Table: t})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{&expr.Queue{Num: queue}}})
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: a rule with a queue: %w (the kernel needs CONFIG_NFT_QUEUE, as the module nft_queue or built in)", err)
	}
	return nil
}

// addForwarded adds the rule that queues connections that a port driver makes inside
// for its clients. Upstream's rules accept them, because they are from a socket of
// root, like the kubelet's probes. Unlike probes, their source address is not an
// address of the node. The rule does not match connections to the node itself, to
// which no policy applies.
func addForwarded(queue uint16, failOpen bool) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: forwardedTable, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that it exists when it is deleted
	c.DelTable(t)
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{
		Name: "postrouting", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting,
		// After kube-proxy has chosen an endpoint, and before it replaces the client's address.
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 6),
	})
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: forwardedRule(queue, failOpen)})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: the rule for forwarded ports: %w", err)
	}
	return nil
}

// forwardedRule returns this rule, in the syntax of nft:
// meta l4proto tcp ct state new meta skuid 0 fib saddr type != local fib daddr type != local queue num N
func forwardedRule(queue uint16, failOpen bool) []expr.Any {
	const r = 1 // the register
	equals := func(op expr.CmpOp, data []byte) expr.Any { return &expr.Cmp{Op: op, Register: r, Data: data} }
	number := binaryutil.NativeEndian.PutUint32
	q := &expr.Queue{Num: queue}
	if failOpen {
		q.Flag = expr.QueueFlagBypass
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r}, equals(expr.CmpOpEq, []byte{unix.IPPROTO_TCP}),
		&expr.Ct{Key: expr.CtKeySTATE, Register: r},
		&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: number(expr.CtStateBitNEW), Xor: number(0)},
		equals(expr.CmpOpNeq, number(0)),
		&expr.Meta{Key: expr.MetaKeySKUID, Register: r}, equals(expr.CmpOpEq, number(0)),
		&expr.Fib{Register: r, FlagSADDR: true, ResultADDRTYPE: true}, equals(expr.CmpOpNeq, number(unix.RTN_LOCAL)),
		&expr.Fib{Register: r, FlagDADDR: true, ResultADDRTYPE: true}, equals(expr.CmpOpNeq, number(unix.RTN_LOCAL)),
		q,
	}
}

func removeForwarded() {
	c, err := nftables.New()
	if err == nil {
		c.DelTable(&nftables.Table{Name: forwardedTable, Family: nftables.TableFamilyINet})
		err = c.Flush()
	}
	if err != nil {
		klog.Errorf("remove the rule for forwarded ports: %v", err)
	}
}

// enforcing returns nil if policies are enforced: the rules exist, and their queue has a reader, which starts when policies,
// pods and namespaces are synchronized.
func enforcing(queue uint16) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("nftables: list chains: %w", err)
	}
	for _, table := range []string{tableName, forwardedTable} {
		if !slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == table && c.Name == "postrouting" }) {
			return fmt.Errorf("table %s has no rules", table)
		}
	}
	has, err := hasReader(queue)
	if err != nil {
		return err
	}
	if !has {
		return errors.New("policies are not synchronized yet: the queue has no reader")
	}
	return nil
}

// hasReader reports whether a socket reads the queue. It tries to unbind the queue from its own socket, which is not bound to
// it: EPERM means that the queue belongs to another socket, ENODEV that it has no reader (nfqnl_recv_config in
// net/netfilter/nfnetlink_queue.c). /proc/net/netfilter/nfnetlink_queue cannot be read in a user namespace.
func hasReader(queue uint16) (bool, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return false, fmt.Errorf("netlink: %w", err)
	}
	defer c.Close()
	const (
		config  = 2 // NFQNL_MSG_CONFIG
		command = 1 // NFQA_CFG_CMD, a struct nfqnl_msg_config_cmd
		unbind  = 2 // NFQNL_CFG_CMD_UNBIND
	)
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: command, Data: []byte{unbind, 0, 0, 0}}})
	if err != nil {
		return false, err
	}
	// struct nfgenmsg: family, version, and the number of the queue.
	header := append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, binaryutil.BigEndian.PutUint16(queue)...)
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_QUEUE<<8 | config, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header, attributes...),
	})
	switch {
	case errors.Is(err, unix.EPERM):
		return true, nil
	case errors.Is(err, unix.ENODEV):
		return false, nil
	case err == nil:
		return false, errors.New("the queue was bound to this socket")
	}
	return false, fmt.Errorf("check the reader of queue %d: %w", queue, err)
}
