//! Implements `gpuheap status --pid` and `gpuheap record`.

use clap::Args;
use gpuheap_doctor::status;
use gpuheap_publish::{Answer, Detail, Question, Refusal, RefusalKind, Socket};

use crate::exit::{Failure, Verdict};
use crate::{machine, output};

/// Arguments of `gpuheap record`.
#[derive(Args, Debug)]
pub(crate) struct RecordArguments {
    /// Process to record
    pid: u32,

    /// End the recording
    #[arg(long)]
    stop: bool,
}

/// Prints a program's heaps, heaviest lines, libraries, open scopes and variables with memory.
pub(crate) fn print_status(pid: u32, is_json: bool) -> Result<Verdict, Failure> {
    let sockets = sockets(pid, "--pid: ", "1")?;
    let ended = || Failure::wrong_use(format!("--pid: process {pid} has ended"));
    let found = gpuheap_publish::survey(&sockets, Detail::All).pop().ok_or_else(ended)?;
    if found.status.is_none() {
        let reason = found.failure.unwrap_or_else(|| "it gave no reason".to_owned());
        return Err(Failure::environment_error(format!("pid {pid} does not answer: {reason}")));
    }
    let held = ask(pid, &sockets, &Question::Held)?.into_iter().flat_map(|answer| match answer {
        Answer::Held(held) => held,
        _ => Vec::new(),
    });
    let program = status::Program { published: found, held: held.collect() };
    let text = if is_json { program.to_json() } else { program.render(machine::width()) };
    output::print(&text).map(|()| Verdict::Fine)
}

/// Starts or ends a recording of a program, and prints the paths of the recorded files.
pub(crate) fn record(arguments: &RecordArguments) -> Result<Verdict, Failure> {
    let RecordArguments { pid, stop } = *arguments;
    let question = if stop { Question::StopRecording } else { Question::StartRecording };
    let answers = ask(pid, &sockets(pid, "", "control")?, &question)?;
    let recordings = answers.into_iter().flat_map(|answer| match answer {
        Answer::Recordings(recordings) => recordings,
        _ => Vec::new(),
    });
    let mut text = String::new();
    for recorded in recordings {
        let path = gpuheap_text::shell_word(&recorded.path);
        text += &match (stop, recorded.stopped) {
            (false, _) => format!("recording into {path}\n"),
            (true, None) => format!("gpuheap report {path}\n"),
            (true, Some(reason)) => format!("gpuheap report {path} # stopped early: {reason}\n"),
        };
    }
    if !stop {
        text += &format!("gpuheap record {pid} --stop # ends it\n");
    }
    output::print(&text).map(|()| Verdict::Fine)
}

/// Returns the sockets of a process. The error for a process without sockets advises
/// `GPUHEAP_PUBLISH={publish}`.
fn sockets(pid: u32, argument: &str, publish: &str) -> Result<Vec<Socket>, Failure> {
    let sockets = gpuheap_publish::of_process(gpuheap_publish::sockets(), pid);
    match sockets.is_empty() {
        true => Err(Failure::wrong_use(format!(
            "{argument}process {pid} does not publish to this user; start it with \
             GPUHEAP_PUBLISH={publish}"
        ))),
        false => Ok(sockets),
    }
}

/// Sends a question to each copy of the library in process `pid`, and returns the answers.
fn ask(pid: u32, sockets: &[Socket], question: &Question) -> Result<Vec<Answer>, Failure> {
    let (mut answers, mut failure, mut refusal) = (Vec::new(), None, None);
    for socket in sockets {
        match gpuheap_publish::ask(socket, question) {
            Ok((_, Answer::Refused(Refusal { kind: RefusalKind::NotAllowed, text }))) => {
                refusal = Some(text);
            }
            Ok((_, Answer::Refused(Refusal { text, .. }))) => failure = Some(text),
            Ok((_, answer)) => answers.push(answer),
            Err(error) => failure = Some(error.to_string()),
        }
    }
    match failure.or(refusal).filter(|_| answers.is_empty()) {
        Some(reason) => Err(Failure::environment_error(format!("pid {pid}: {reason}"))),
        None => Ok(answers),
    }
}
