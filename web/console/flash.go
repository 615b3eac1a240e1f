package console

import (
	"encoding/base64"
	"encoding/json"
	"net/http"

	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// flashCookie is the name of the cookie of a [flash].
const flashCookie = "yard_flash"

// flash is a message that the next page shows once.
type flash struct {
	Text   string
	Failed bool
}

// setFlash passes a message to the next page of a browser.
func setFlash(w http.ResponseWriter, secure bool, message flash) {
	message.Text = format.Shorten(message.Text, 1500)
	text, _ := json.Marshal(message) // has no error
	http.SetCookie(w, &http.Cookie{
		Name: flashCookie, Value: base64.RawURLEncoding.EncodeToString(text), Path: Path, MaxAge: 30, HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	})
}

// takeFlash returns the message for this page, nil if there is none.
func takeFlash(w http.ResponseWriter, r *http.Request, secure bool) *flash {
	cookie, err := r.Cookie(flashCookie)
	if err != nil {
		return nil
	}
	http.SetCookie(w, &http.Cookie{Name: flashCookie, Path: Path, MaxAge: -1, HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode})
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	message := &flash{}
	if err != nil || json.Unmarshal(text, message) != nil {
		return nil
	}
	return message
}
