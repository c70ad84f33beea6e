package lockmgr

import (
	"testing"

	"github.com/google/uuid"
)

func TestParseService(t *testing.T) {
	id := uuid.New()
	for _, want := range []Service{
		{Kind: KindEtcd, ID: id, At: "https://a:2379,https://b@c/d:2379"},
		{Kind: KindKubernetes, ID: id},
		{Kind: KindEmbedded, ID: id, At: "node/1"},
	} {
		if got, err := ParseService(want.String()); err != nil || got != want {
			t.Errorf("ParseService(%q) = %v, %v", want, got, err)
		}
	}
	for _, text := range []string{"", "unknown", "etcd", "etcd/", "etcd/x", "zookeeper/" + id.String(), id.String()} {
		if got, err := ParseService(text); err == nil {
			t.Errorf("ParseService(%q) = %v", text, got)
		}
	}
}
