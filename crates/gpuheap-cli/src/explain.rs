//! `gpuheap explain`.

use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;

use clap::Args;
use gpuheap::emu::Profile;
use gpuheap_doctor::machine::Host;
use gpuheap_doctor::{RULES, TOPICS, Topic, explain_error};
use gpuheap_publish::Detail;

use crate::exit::{Failure, Verdict};
use crate::{machine, output, values};

/// Arguments of `gpuheap explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArguments {
    /// A rule, such as P01, or a topic: dedicated, wslconfig, rapids. A topic is explained with the
    /// numbers of this machine. Without ID, the text of an error is read from standard input
    #[arg(value_name = "ID")]
    id: Option<String>,

    /// Explain with the numbers of a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Treat the error as one from this kind of device, whatever this machine is and whatever the
    /// error says: wsl2-rtx4060 for WSL2, h200 for Linux
    #[arg(long, value_name = "NAME", value_parser = values::profile, allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["id", "machine"])]
    profile: Option<Profile>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Maximum length of an error's text, in bytes. The rest of standard input is ignored.
const MOST: u64 = 16 << 20;

/// Explains a rule, or the text of an error.
pub(crate) fn run(arguments: &ExplainArguments) -> Result<Verdict, Failure> {
    let json = arguments.json;
    if let Some(id) = &arguments.id {
        if TOPICS.iter().any(|topic| topic.eq_ignore_ascii_case(id)) {
            let mut machine = machine::read(arguments.machine.as_ref(), Detail::Heaps)?;
            machine.read_windows();
            let topic = Topic::explain(id, &machine, machine::width());
            let text = topic.map(|topic| if json { topic.to_json() } else { topic.text });
            return output::print(&text.unwrap_or_default()).map(|()| Verdict::Fine);
        }
        let rule = RULES.iter().find(|rule| rule.id.eq_ignore_ascii_case(id)).ok_or_else(|| {
            let ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
            Failure::wrong_use(format!(
                "there is no rule or topic '{id}'; the topics are {}, the rules {}",
                TOPICS.join(", "),
                ids.join(" ")
            ))
        })?;
        let text = if json { rule.to_json() } else { rule.render(machine::width()) };
        return output::print(&text).map(|()| Verdict::Fine);
    }
    if stdin().is_terminal() {
        return Err(Failure::wrong_use(
            "nothing to explain; give a rule's id, or pipe an error's text: gpuheap explain < error.txt",
        ));
    }
    let mut bytes = Vec::new();
    stdin()
        .lock()
        .take(MOST)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::wrong_use(format!("standard input cannot be read: {error}")))?;
    let text = String::from_utf8_lossy(&bytes);
    let found = explain_error(&text, on_wsl2(arguments)?).ok_or_else(|| {
        Failure::wrong_use(
            "standard input: no out-of-memory error of PyTorch, RMM, cuDF, Dask, CuPy, Numba, JAX, \
             CUDA.jl, PyCUDA, cudarc, gpuheap, CUDA, NumPy, C++ or the kernel is in it; pipe the \
             whole text of the error",
        )
    })?;
    let text = if json { found.to_json() } else { found.render(machine::width()) };
    output::print(&text).map(|()| Verdict::Fine)
}

/// Returns `Some(true)` for an error under WSL2, and `Some(false)` for an error on Linux. Returns
/// `None` if only the error's text can decide.
fn on_wsl2(arguments: &ExplainArguments) -> Result<Option<bool>, Failure> {
    if let Some(profile) = &arguments.profile {
        return Ok(Some(profile.wsl2));
    }
    let host = match &arguments.machine {
        Some(_) => Some(machine::read_devices(arguments.machine.as_ref())?.host),
        None => Host::here().ok(),
    };
    // If this machine runs WSL2, the error is taken to be from WSL2. Otherwise, the error may be
    // from another machine, so the error's text decides.
    Ok(host.is_some_and(|host| host.is_wsl).then_some(true))
}
