//! Runs a shell in tmux, a real terminal emulator. Without tmux, the tests print that they are
//! skipped, and pass. With `GPUHEAP_TEST_TMUX=required` they fail.

#![allow(dead_code, reason = "each suite uses its own part")]

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Maximum wait for a text. On an idle machine, a screen opens within a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// An interactive shell in a terminal of 80 columns and 24 rows.
pub(crate) struct Tmux {
    folder: TempDir,
}

impl Tmux {
    /// Starts the shell; `None` without tmux.
    pub(crate) fn start() -> Option<Tmux> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let words = "no tmux on this machine, so no terminal was opened";
            let is_required = std::env::var("GPUHEAP_TEST_TMUX").is_ok_and(|is| is == "required");
            assert!(!is_required, "{words}; GPUHEAP_TEST_TMUX is required");
            // Unlike `eprintln!`, this is not captured by the test harness.
            let mut stderr = std::io::stderr();
            writeln!(stderr, "SKIPPED: {words}").unwrap();
            return None;
        }
        let tmux = Tmux { folder: tempfile::tempdir().unwrap() };
        let size = ["-x", "80", "-y", "24"];
        tmux.tmux(&[&["new-session", "-d"], &size[..], &["exec env PS1='$ ' sh -i"]].concat());
        tmux.wait_for("$");
        Some(tmux)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command of tmux, and returns its output.
    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder().join("tmux")).args(["-u", "-f", "/dev/null"]);
        let ran = command.env("LC_ALL", "C.UTF-8").env_remove("TMUX").args(arguments).output();
        let ran = ran.unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    /// Types a text and Enter.
    pub(crate) fn run(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    /// Presses a key. `key` is tmux's name for it, for example `q`, `C-z` or `Down`.
    pub(crate) fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Returns the shown text.
    pub(crate) fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the shown text contains `wanted`. Returns the text.
    pub(crate) fn wait_for(&self, wanted: &str) -> String {
        self.wait(wanted, |text| text.contains(wanted))
    }

    /// Waits until the shown text fulfils a condition. Returns the text.
    pub(crate) fn wait(&self, wanted: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let text = self.text();
            if is_there(&text) {
                return text;
            }
            assert!(begin.elapsed() < PATIENCE, "no {wanted:?} in\n{text}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the part of the terminal's state that a program may change: the alternate screen,
    /// the cursor, keys, mouse and settings.
    pub(crate) fn state(&self) -> String {
        let flags =
            "#{alternate_on} #{cursor_flag} #{keypad_flag} #{mouse_any_flag} #{insert_flag}";
        let flags = self.tmux(&["display-message", "-p", flags]);
        let terminal = self.tmux(&["display-message", "-p", "#{pane_tty}"]);
        let settings = Command::new("stty").args(["-a", "-F", terminal.trim()]).output().unwrap();
        assert!(settings.status.success());
        flags + &String::from_utf8(settings.stdout).unwrap()
    }
}

impl Tmux {
    /// Closes the terminal, as if a connection ended.
    pub(crate) fn close(&self) {
        let socket = self.folder().join("tmux");
        // Fails if it is closed already.
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").output();
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.close();
    }
}
