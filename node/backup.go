package node

import (
	"context"
	"encoding/json"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server"
)

func (n *Node) backupConfig() backup.Config {
	return backup.Config{
		Node: n.cfg.Node.Name, Yard: n.id.Yard, Version: n.version, Ledger: n.raft,
		Streams: n.cluster.Admin, LaneInfo: n.cluster.Reader.LaneInfo, Members: n.cluster.Members, Routed: n.cluster.Routed,
		Propose: func(ctx context.Context, c ledger.Command) error {
			_, err := n.proposer.Propose(ctx, c)
			return err
		},
		ReadBarrier: n.proposer.ReadBarrier, Log: n.log,
	}
}

// backupService returns the endpoints for backup and restore. They are not served over
// HTTP, because files are sent in chunks.
func (n *Node) backupService() cluster.Service {
	return cluster.Service{
		Name: "yard-backup", Version: semver(n.version), Description: "Yardmaster: backup and restore of the whole yard",
		Metadata: n.serviceMetadata, Endpoints: n.bind(api.BackupEndpoints, n.backupHandlers()),
	}
}

// backupHandlers returns the handlers of [api.BackupEndpoints] by name.
func (n *Node) backupHandlers() map[string]handler {
	b := n.backups
	return map[string]handler{
		"backup-begin": server.JSONReply(b.BeginBackup),
		"backup-read": server.Raw(func(ctx context.Context, body []byte) ([]byte, error) {
			var req api.BackupRequest
			if len(body) > 0 {
				if err := job.UnmarshalStrict("request", body, &req); err != nil {
					return nil, err
				}
			}
			return b.ReadBackup(ctx, &req)
		}),
		"backup-end":    server.JSON(b.EndBackup),
		"restore-begin": server.JSON(b.BeginRestore),
		"restore-push": server.Raw(func(ctx context.Context, body []byte) ([]byte, error) {
			reply, err := b.PushRestore(ctx, body)
			if err != nil {
				return nil, err
			}
			return json.Marshal(reply)
		}),
		"restore-finish":  server.JSON(b.FinishRestore),
		"restore-abandon": server.JSONReply(b.AbandonRestore),
		"restore-wait":    server.JSON(b.WaitRestore),
	}
}
