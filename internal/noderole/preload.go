package noderole

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// preloaded records an imported archive of preloadDir.
type preloaded struct {
	// Size and Modified are those of the file, so that a changed file is recognized without reading it.
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	// Names are the images of the archive.
	Names []string `json:"names"`
}

// preload imports the archives of preloadDir that have changed since they were recorded, or whose images are missing. It
// returns the new record. Faults are warnings, because the node works without these images.
func (i *imageImporter) preload(ctx context.Context, record map[string]preloaded, have []criclient.Image) map[string]preloaded {
	archives := i.archives()
	if len(archives) > 0 && !i.runtime.HasImageStore() {
		i.warn(fmt.Sprintf("the images in %s are not imported: this needs cri.runtime containerd", i.cfg.PreloadDir))
		return nil
	}
	var names []string
	for _, image := range have {
		names = append(names, image.Names...)
	}
	next := map[string]preloaded{}
	for _, info := range archives {
		if old, ok := record[info.Name()]; ok && old.Size == info.Size() && old.Modified.Equal(info.ModTime()) && containsAll(names, old.Names) {
			next[info.Name()] = old
			continue
		}
		path := filepath.Join(i.cfg.PreloadDir, info.Name())
		supervisor.Progress(ctx, "importing %s", path)
		if imported := i.preloadOne(ctx, path); len(imported) > 0 {
			next[info.Name()] = preloaded{Size: info.Size(), Modified: info.ModTime(), Names: imported}
		}
	}
	return next
}

// archives returns the archives of preloadDir, which may be links.
func (i *imageImporter) archives() []fs.FileInfo {
	if i.cfg.PreloadDir == "" {
		return nil
	}
	files, err := os.ReadDir(i.cfg.PreloadDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		i.warn("preload images: " + err.Error())
	}
	var found []fs.FileInfo
	for _, file := range files {
		if !isArchiveName(file.Name()) {
			continue
		}
		switch info, err := os.Stat(filepath.Join(i.cfg.PreloadDir, file.Name())); {
		case err != nil:
			i.warn("preload images: " + err.Error())
		case info.Mode().IsRegular():
			found = append(found, info)
		}
	}
	return found
}

// preloadOne imports an archive and returns the names of its images. With a fault, it returns none, so that the next start tries again.
func (i *imageImporter) preloadOne(ctx context.Context, path string) []string {
	r, err := i.importArchive(ctx, path)
	if err == nil {
		err = r.Err("preload " + path)
	}
	if err != nil {
		i.warn(strings.Split(err.Error(), "\n")...)
		return nil
	}
	var names []string
	for _, image := range r.Images {
		names = append(names, image.Names...)
	}
	return names
}

// isArchiveName reports whether a file name is that of a plain or compressed archive.
func isArchiveName(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".tar" || ext == ".tgz" || filepath.Ext(strings.TrimSuffix(name, ext)) == ".tar")
}

func containsAll(list, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(list, w) })
}
