package orders

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

type cluster struct {
	Bootstrap string
	Control   struct{ URL, Token string }
}

// up starts a cluster of three nodes; it ends with the test, or with this process.
func up(t *testing.T) *cluster {
	words := strings.Fields(os.Getenv("QUORUMLOG"))
	if len(words) == 0 {
		words = []string{"quorumlog"}
	}
	words = append(words, "up", "--dir", t.TempDir(), "--port", "0", "--control", "0", "--json", "--until-stdin-closes")
	command := exec.Command(words[0], words[1:]...)
	command.Stderr = os.Stderr
	input, _ := command.StdinPipe()
	output, _ := command.StdoutPipe()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { input.Close(); command.Wait() })
	started := &cluster{}
	if err := json.NewDecoder(output).Decode(started); err != nil {
		t.Fatalf("the cluster did not start: %v", err)
	}
	return started
}

func (c *cluster) post(t *testing.T, path, body string) {
	request, _ := http.NewRequest("POST", c.Control.URL+path, strings.NewReader(body))
	request.Header.Set("Authorization", fmt.Sprint("Bearer ", c.Control.Token))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if said, _ := io.ReadAll(answer.Body); answer.StatusCode != 200 {
		t.Fatalf("%s: %s", path, said)
	}
}
