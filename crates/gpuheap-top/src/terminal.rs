//! Prepares the terminal for the screen, and restores it afterwards.

use std::io::{self, BufWriter, Stdout, Write, stdout};
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{
    Attribute, Color, Print, ResetColor, SetAttribute, SetAttributes, SetForegroundColor,
};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{execute, queue};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color as CellColor, Modifier, Style};

/// The terminal, in raw mode and with its alternate screen. Dropping the value restores the
/// terminal, even if the drawing thread panicked.
pub(crate) struct Terminal {
    output: BufWriter<Stdout>,
    /// The frame that the terminal shows.
    shown: Buffer,
    hook: Arc<Hook>,
}

/// Panic hook that was set before.
type Hook = dyn Fn(&PanicHookInfo<'_>) + Send + Sync;

impl Terminal {
    /// Enables raw mode and the alternate screen, and sets the panic hook.
    pub(crate) fn enter() -> io::Result<Terminal> {
        let hook: Arc<Hook> = Arc::from(panic::take_hook());
        let terminal = Terminal {
            output: BufWriter::new(stdout()),
            shown: Buffer::empty(Rect::ZERO),
            hook: hook.clone(),
        };
        let drawing = thread::current().id();
        panic::set_hook(Box::new(move |info| report(info, drawing, &*hook)));
        // If `open` fails, dropping `terminal` undoes the part that succeeded.
        open()?;
        Ok(terminal)
    }

    /// Returns the terminal's size.
    pub(crate) fn area() -> io::Result<Rect> {
        let (width, height) = size()?;
        Ok(Rect::new(0, 0, width, height))
    }

    /// Shows a frame. Writes only the cells that differ from the previous frame.
    pub(crate) fn show(&mut self, frame: Buffer) -> io::Result<()> {
        if self.shown.area() != frame.area() {
            queue!(self.output, ResetColor, Clear(ClearType::All))?;
            self.shown = Buffer::empty(*frame.area());
        }
        let mut style = Style::reset();
        let mut next = None;
        for (x, y, cell) in self.shown.diff(&frame) {
            if next != Some((x, y)) {
                queue!(self.output, MoveTo(x, y))?;
            }
            if cell.style() != style {
                style = cell.style();
                queue_style(&mut self.output, style)?;
            }
            queue!(self.output, Print(cell.symbol()))?;
            // A character outside ASCII may take two columns. The cursor's column is then unknown,
            // so the next cell needs a `MoveTo`.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        queue!(self.output, ResetColor, SetAttribute(Attribute::Reset))?;
        self.output.flush()?;
        self.shown = frame;
        Ok(())
    }

    /// Restores the terminal, and stops the process. When the process continues, shows the screen
    /// again.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        close();
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        open()?;
        self.shown = Buffer::empty(Rect::ZERO);
        Ok(())
    }

    /// Enables raw mode again, and forgets the shown frame, so that the next frame is drawn in
    /// full. Needed if this process was stopped and continued by a signal, because the shell
    /// changed the terminal's mode in between.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        disable_raw_mode()?;
        enable_raw_mode()?;
        self.shown = Buffer::empty(Rect::ZERO);
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        close();
        // A panicking thread cannot set a hook.
        if !thread::panicking() {
            let hook = self.hook.clone();
            panic::set_hook(Box::new(move |info| hook(info)));
        }
    }
}

/// If the drawing thread panics, restores the terminal and then reports the panic. Does not report
/// a panic of another thread: the screen stays, and the text would garble it.
fn report(info: &PanicHookInfo<'_>, drawing: ThreadId, hook: &Hook) {
    if thread::current().id() == drawing {
        close();
        hook(info);
    }
}

/// `true` between [`open`] and [`close`]. Leaving the alternate screen twice would move the cursor.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

fn open() -> io::Result<()> {
    IS_OPEN.store(true, Ordering::Relaxed);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal, if [`open`] changed it.
pub(crate) fn close() {
    if !IS_OPEN.swap(false, Ordering::Relaxed) {
        return;
    }
    // The terminal may be gone, after SIGHUP.
    let _ = execute!(stdout(), ResetColor, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

fn queue_style(output: &mut impl Write, style: Style) -> io::Result<()> {
    queue!(output, SetAttribute(Attribute::Reset))?;
    let color = match style.fg {
        Some(CellColor::Cyan) => Some(Color::DarkCyan),
        Some(CellColor::Green) => Some(Color::DarkGreen),
        Some(CellColor::Yellow) => Some(Color::DarkYellow),
        _ => None,
    };
    if let Some(color) = color {
        queue!(output, SetForegroundColor(color))?;
    }
    let attributes = [
        (Modifier::BOLD, Attribute::Bold),
        (Modifier::DIM, Attribute::Dim),
        (Modifier::REVERSED, Attribute::Reverse),
    ];
    let has = |(modifier, _): &(Modifier, Attribute)| style.add_modifier.contains(*modifier);
    let set: Vec<Attribute> = attributes.into_iter().filter(has).map(|(_, set)| set).collect();
    queue!(output, SetAttributes(set.as_slice().into()))
}
