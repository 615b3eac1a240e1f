// Package tasks has two kinds of jobs and their handlers, for the programs enqueue and worker
// beside it.
package tasks

import (
	"context"
	"log"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
)

// EmailDelivery is a job that sends a message to a user.
type EmailDelivery struct {
	UserID     int
	TemplateID string
}

func (EmailDelivery) Kind() string { return "email:deliver" }

// ImageResize is a job that makes smaller copies of an image.
type ImageResize struct {
	SourceURL string
}

func (ImageResize) Kind() string  { return "image:resize" }
func (ImageResize) Queue() string { return "images" }

// ImageResizeOptions are the options of an ImageResize, unless later ones replace them.
func ImageResizeOptions(more ...client.Option) []client.Option {
	return append([]client.Option{client.MaxAttempts(6), client.Timeout(20 * time.Minute)}, more...)
}

// DeliverEmail is the handler of an EmailDelivery.
func DeliverEmail(_ context.Context, job *client.Job[EmailDelivery]) (any, error) {
	log.Printf("sending %s to user %d", job.Args.TemplateID, job.Args.UserID)
	return nil, nil
}

// ImageProcessor has what the handler of an ImageResize needs.
type ImageProcessor struct{}

// Resize is the handler of an ImageResize.
func (p *ImageProcessor) Resize(_ context.Context, job *client.Job[ImageResize]) (any, error) {
	log.Printf("resizing %s", job.Args.SourceURL)
	return nil, nil
}
