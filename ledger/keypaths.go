package ledger

// KeyPath is where the jobs of a queue have their limit keys, see [job.QueueConfig].
type KeyPath struct {
	Path     string
	Optional bool
}

// KeyPaths are the key paths of queues. It is immutable. A nil KeyPaths is empty.
type KeyPaths struct{ byQueue map[string]KeyPath }

// Of returns the key path of a queue, zero if it has none.
func (k *KeyPaths) Of(queue string) KeyPath {
	if k == nil {
		return KeyPath{}
	}
	return k.byQueue[queue]
}

// KeyPaths returns the key paths of queues. The result remains valid when the ledger changes.
func (q *queues) KeyPaths() *KeyPaths { return q.keyPaths }

// setKeyPath sets the key path of a queue, or removes it if it is zero.
func (q *queues) setKeyPath(queue string, path KeyPath) {
	if q.keyPaths.Of(queue) == path {
		return
	}
	byQueue := make(map[string]KeyPath)
	if q.keyPaths != nil {
		for name, other := range q.keyPaths.byQueue {
			byQueue[name] = other
		}
	}
	if byQueue[queue] = path; path == (KeyPath{}) {
		delete(byQueue, queue)
	}
	if q.keyPaths = nil; len(byQueue) > 0 {
		q.keyPaths = &KeyPaths{byQueue}
	}
}

// keyPath returns the queue's key path.
func (q *queue) keyPath() KeyPath {
	if q.config.KeyPath == "" {
		return KeyPath{}
	}
	return KeyPath{q.config.KeyPath, q.config.KeyOptional}
}
