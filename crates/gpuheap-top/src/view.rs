//! Keeps the screen's order, filter, selection and dialogs, and handles the keys that change them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gpuheap_doctor::free::{Cache, Orphan};
use gpuheap_text::{cut, hanging, mib};

use crate::figures::{Figures, ProcessFigures};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Largest memory first.
    #[default]
    Memory,
    /// Fastest growth first.
    Grown,
    /// Largest cache first.
    Cached,
    /// Youngest first.
    Age,
    /// By pid.
    Pid,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Memory => Order::Grown,
            Order::Grown => Order::Cached,
            Order::Cached => Order::Age,
            Order::Age => Order::Pid,
            Order::Pid => Order::Memory,
        }
    }
}

/// Work that a key requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// End the screen.
    Quit,
    /// Stop the process until it is continued.
    Suspend,
    /// Run the doctor.
    Examine,
    /// Make a program give back its cached memory.
    Flush(Cache),
    /// End an orphan.
    End(Orphan),
}

/// Dialog above the screen.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Dialog {
    #[default]
    None,
    /// A text, with the number of lines that are scrolled away.
    Text { title: String, text: String, scroll: usize },
    /// Findings of the doctor. One finding is selected.
    Findings { selected: usize },
    /// The doctor examines the machine, before memory of process `pid` is freed.
    Looking { pid: u32 },
    /// A question before memory is freed.
    Question { text: String, action: Action },
}

/// State of the screen.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) figures: Figures,
    pub(crate) order: Order,
    pub(crate) is_tree: bool,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    /// `true` if the details of the selected process fill the screen.
    pub(crate) has_only_details: bool,
    pub(crate) dialog: Dialog,
    /// `true` while the doctor examines the machine, or while memory is freed.
    pub(crate) is_busy: bool,
    /// `true` if the machine is a recording. No key then flushes caches or ends processes.
    pub(crate) is_recording: bool,
    selected: Option<Identity>,
}

/// Key of a process: its pid, or its index among the programs if it is in another PID namespace.
type Identity = (Option<u32>, Option<usize>);

fn identity(process: &ProcessFigures) -> Identity {
    (process.pid, process.program.filter(|_| process.pid.is_none()))
}

/// Rows that a page key moves.
const PAGE: usize = 10;

/// Width of texts in dialogs.
pub(crate) const DIALOG_WIDTH: usize = 72;

const HELP: &str = "\
Up, Down, PgUp, PgDn, Home, End   select a process; j and k move, too
Enter   details of the process alone, and back
s       next order: memory, grown, cached, age, pid
t       tree: processes below their parents
/       filter by pid, user or command; Enter keeps it, Esc clears it
d       findings of the doctor; Enter explains one
f       free memory of the process: flushes it, or ends it if it is a
        proven orphan; asks first
Ctrl-Z  suspend
q       quit

MEMORY is the driver's figure. GROWN is the rise of a floor over a
minute: a line that takes and returns memory in each step has none.
Live and cached bytes and lines are known of programs that publish:
  GPUHEAP_PUBLISH=1 GPUHEAP_TRACK=counts ./program
";

impl View {
    /// Returns the processes that the screen lists, in its order.
    pub(crate) fn processes(&self) -> Vec<ProcessFigures> {
        self.listed(self.figures.processes())
    }

    /// Filters and orders processes.
    pub(crate) fn listed(&self, mut all: Vec<ProcessFigures>) -> Vec<ProcessFigures> {
        let wanted = self.filter.to_lowercase();
        all.retain(|process| {
            let pid = process.pid.map(|pid| pid.to_string()).unwrap_or_default();
            [&pid, &process.user, &process.command]
                .iter()
                .any(|text| text.to_lowercase().contains(&wanted))
        });
        match self.order {
            Order::Memory => {}
            Order::Grown => {
                all.sort_by_key(|process| Reverse(process.growth.map(|growth| growth.bytes)));
            }
            Order::Cached => all.sort_by_key(|process| Reverse(process.cached)),
            Order::Age => all.sort_by_key(|process| process.age_seconds.unwrap_or(u64::MAX)),
            Order::Pid => all.sort_by_key(|process| process.pid),
        }
        if self.is_tree { self.tree(all) } else { all }
    }

    /// Orders processes below their parents. Adds a parent that uses no memory, if two or more of
    /// the processes are its children.
    fn tree(&self, mut all: Vec<ProcessFigures>) -> Vec<ProcessFigures> {
        let mut shown: BTreeSet<u32> = all.iter().filter_map(|process| process.pid).collect();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for parent in all.iter().filter_map(|process| process.parent) {
            *counts.entry(parent).or_default() += 1;
        }
        let mut at = 0;
        while at < all.len() {
            if let Some(parent) = all[at].parent
                && counts[&parent] > 1
                && let Some(command) = self.figures.snapshot.others.get(&parent)
                && shown.insert(parent)
            {
                let (pid, command) = (Some(parent), command.clone());
                let user = all[at].user.clone();
                all.insert(at, ProcessFigures { pid, command, user, ..Default::default() });
                at += 1;
            }
            at += 1;
        }
        let index = |(at, process): (usize, &ProcessFigures)| Some((process.pid?, at));
        let indices: BTreeMap<u32, usize> = all.iter().enumerate().filter_map(index).collect();
        let path = |at: usize| {
            let mut path = VecDeque::from([at]);
            // Parents that were read at different times may form a cycle.
            while let Some(parent) = all[path[0]].parent.and_then(|parent| indices.get(&parent))
                && !path.contains(parent)
            {
                path.push_front(*parent);
            }
            path
        };
        let mut paths: Vec<VecDeque<usize>> = (0..all.len()).map(path).collect();
        paths.sort_unstable();
        let row = |path: &VecDeque<usize>| {
            Some(ProcessFigures { depth: path.len() - 1, ..all[*path.back()?].clone() })
        };
        paths.iter().filter_map(row).collect()
    }

    /// Returns the index of the selected process in `rows`, or 0 if that process has ended.
    pub(crate) fn selected(&self, rows: &[ProcessFigures]) -> usize {
        rows.iter().position(|row| Some(identity(row)) == self.selected).unwrap_or(0)
    }

    fn select(&mut self, moved: impl Fn(usize, usize) -> usize) {
        let rows = self.processes();
        let last = rows.len().saturating_sub(1);
        let at = moved(self.selected(&rows), last).min(last);
        self.selected = rows.get(at).map(identity);
    }

    /// Handles a key. Returns the action that the key requests, if any.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Option<Action> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Action::Quit),
                KeyCode::Char('z') => Some(Action::Suspend),
                _ => None,
            };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return None;
        }
        if self.dialog != Dialog::None {
            return self.press_in_dialog(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at, _| at + 1),
            KeyCode::PageUp => self.select(|at, _| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(|at, _| at + PAGE),
            KeyCode::Home => self.select(|_, _| 0),
            KeyCode::End => self.select(|_, last| last),
            KeyCode::Enter => self.has_only_details = !self.has_only_details,
            KeyCode::Esc => {
                self.has_only_details = false;
                self.filter.clear();
            }
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('t') => self.is_tree = !self.is_tree,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('h' | '?') => self.show("Keys", HELP.to_owned()),
            KeyCode::Char('d') => {
                self.dialog = Dialog::Findings { selected: 0 };
                return self.examine();
            }
            KeyCode::Char('f') => return self.free(),
            _ => {}
        }
        None
    }

    /// Shows a text in a dialog.
    pub(crate) fn show(&mut self, title: &str, text: String) {
        self.dialog = Dialog::Text { title: title.to_owned(), text, scroll: 0 };
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    fn press_in_dialog(&mut self, code: KeyCode) -> Option<Action> {
        let findings = self.figures.examination.as_ref().map_or(0, |found| found.findings.len());
        let moved = |at: usize| match code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(PAGE),
            KeyCode::PageDown => at + PAGE,
            _ => at,
        };
        match (std::mem::take(&mut self.dialog), code) {
            (Dialog::Question { action, .. }, KeyCode::Char('y')) => {
                self.is_busy = true;
                return Some(action);
            }
            (question @ Dialog::Question { .. }, code)
                if !matches!(code, KeyCode::Char('n' | 'q') | KeyCode::Esc) =>
            {
                self.dialog = question;
            }
            (_, KeyCode::Esc | KeyCode::Char('q')) | (Dialog::Question { .. }, _) => {}
            (Dialog::Findings { selected }, KeyCode::Enter) => self.explain(selected),
            (Dialog::Findings { selected }, _) => {
                let selected = moved(selected).min(findings.saturating_sub(1));
                self.dialog = Dialog::Findings { selected };
            }
            (Dialog::Text { title, text, scroll }, _) => {
                let last = text.lines().count().saturating_sub(1);
                self.dialog = Dialog::Text { title, text, scroll: moved(scroll).min(last) };
            }
            (dialog, _) => self.dialog = dialog,
        }
        None
    }

    /// Shows a finding with its cause, its command and the long text of its rule.
    fn explain(&mut self, selected: usize) {
        let examination = self.figures.examination.as_ref();
        let Some(finding) = examination.and_then(|found| found.findings.get(selected)) else {
            return;
        };
        let mut text = String::new();
        let rule = gpuheap_doctor::RULES.iter().find(|rule| rule.id == finding.rule);
        let explanation = rule.map(gpuheap_doctor::Rule::explanation).unwrap_or_default();
        for words in [&finding.fact, &finding.cause, &explanation] {
            hanging(&mut text, "", "", words, DIALOG_WIDTH);
            text.push('\n');
        }
        text.push_str(&format!("$ {}\n", finding.command));
        let title = format!("Finding {}", finding.rule);
        self.show(&title, text);
    }

    fn examine(&mut self) -> Option<Action> {
        (!std::mem::replace(&mut self.is_busy, true)).then_some(Action::Examine)
    }

    /// Begins to free memory of the selected process. First requests an examination of the memory
    /// that can be freed.
    fn free(&mut self) -> Option<Action> {
        let rows = self.processes();
        let Some(pid) = rows.get(self.selected(&rows)).and_then(|row| row.pid) else {
            self.show("Free", "no process of this PID namespace is selected\n".to_owned());
            return None;
        };
        self.dialog = Dialog::Looking { pid };
        self.examine()
    }

    /// Takes the result of an examination of the machine. If the user requested to free a process's
    /// memory, shows a question to confirm it.
    pub(crate) fn take_examination(&mut self, found: crate::snapshot::Examination) {
        self.is_busy = false;
        if let Dialog::Looking { pid } = self.dialog {
            let plan = &found.plan;
            let is_here = !self.is_recording;
            let is_its = |orphan: &&Orphan| orphan.pid == pid || orphan.listed_pid == pid;
            let cache = plan.caches.iter().find(|cache| is_here && cache.pid == pid);
            let orphan = plan.orphans.iter().find(|orphan| is_here && is_its(orphan));
            self.dialog = match (cache, orphan) {
                (Some(cache), _) => Dialog::Question {
                    text: format!(
                        "Flush pid {pid} ({})? It gives back {} that it keeps for later, and runs \
                         on.",
                        cut(&cache.program, 40),
                        mib(cache.bytes)
                    ),
                    action: Action::Flush(cache.clone()),
                },
                (None, Some(orphan)) => Dialog::Question {
                    text: format!(
                        "End pid {} ({})? It is a proven orphan. That gives back {} of GPU {}, \
                         listed under pid {}, which has ended.",
                        orphan.pid,
                        orphan.command,
                        mib(orphan.bytes),
                        orphan.device,
                        orphan.listed_pid
                    ),
                    action: Action::End(orphan.clone()),
                },
                (None, None) => Dialog::Text {
                    title: format!("Pid {pid} is neither flushed nor ended from here"),
                    text: plan.render(DIALOG_WIDTH),
                    scroll: 0,
                },
            };
        }
        self.figures.examination = Some(found);
    }
}
