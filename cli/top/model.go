package top

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
)

// model connects a state with the terminal and a node.
type model struct {
	state
	ctx     context.Context
	fetch   func(context.Context, request) answer
	asking  bool // an answer is awaited
	pending bool // the request has changed since
}

// Init asks for the first answer.
func (m *model) Init() tea.Cmd { return m.ask() }

// ask asks a node, unless an answer is awaited.
func (m *model) ask() tea.Cmd {
	if m.asking {
		m.pending = true
		return nil
	}
	m.asking, m.pending = true, false
	r := m.request()
	return func() tea.Msg { return m.fetch(m.ctx, r) }
}

// refresh is the message that it is time to ask again.
type refresh struct{}

// Update handles a message: a key, a new size of the terminal, or an answer.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		before := m.request()
		if m.press(msg.String()) {
			return m, tea.Quit
		}
		if m.request() != before {
			return m, m.ask()
		}
	case answer:
		m.asking = false
		m.receive(msg)
		if m.pending {
			return m, m.ask()
		}
		return m, tea.Tick(refreshEvery, func(time.Time) tea.Msg { return refresh{} })
	case refresh:
		return m, m.ask()
	}
	return m, nil
}

// View returns the frame.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.frame(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "yardmaster top"
	return v
}
