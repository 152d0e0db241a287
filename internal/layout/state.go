package layout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// StateFormat is the version of the state files that survive a run. Increase it when the meaning of one of them changes, so that older
// programs refuse the data instead of damaging it. New fields do not need a new version, because programs ignore or keep unknown fields.
const StateFormat = 1

// EncodeState returns v, which must be a JSON object, as the content of a state file.
func EncodeState(v any) ([]byte, error) {
	fields := map[string]json.RawMessage{} // values stay as they are, also large numbers
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &fields)
	}
	if err != nil {
		return nil, err
	}
	fields["format"] = json.RawMessage(strconv.Itoa(StateFormat))
	if b, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// WriteState replaces a state file with v, atomically and with mode 0600, so that it survives a crash of the host.
func WriteState(path string, v any) error {
	b, err := EncodeState(v)
	if err == nil {
		err = atomicfile.Options{Durable: true}.Write(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ReadState decodes a state file into v. It reads files of earlier versions, too, which have no format.
//
// Errors: fs.ErrNotExist; of class errdefs.ErrConfig if the file is of a newer version.
func ReadState(path string, v any) error {
	if err := CheckFormat(path); err != nil {
		return err
	}
	return ReadJSON(path, v)
}

// CheckFormat returns an error if a state file is of a newer version than this program, of class errdefs.ErrConfig, or is not readable.
func CheckFormat(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if format := formatOf(b); format > StateFormat {
		return NewerError(path, format)
	}
	return nil
}

// NewerError returns the error for a state file of a newer version.
func NewerError(path string, format int) error {
	return errdefs.Config("%s: format %d is newer than this program, which supports formats up to %d", path, format, StateFormat).
		Hint("# use the version of the program that wrote the data, or a newer one")
}

// WriteFormat writes the first line of a state file that is not JSON. Its readers ignore the line.
func WriteFormat(w io.Writer) error {
	_, err := fmt.Fprintf(w, formatLine+"\n", StateFormat)
	return err
}

const formatLine = "#format %d"

// formatOf returns the format of the content of a state file, or 0 if it has none.
func formatOf(b []byte) (format int) {
	if first, _, _ := bytes.Cut(b, []byte("\n")); len(first) > 0 && first[0] == '#' {
		if _, err := fmt.Sscanf(string(first), formatLine, &format); err != nil {
			return 0
		}
		return format
	}
	var head struct {
		Format int `json:"format"`
	}
	_ = json.Unmarshal(b, &head) // other content has no format
	return head.Format
}
