//! `gpuheap status`: accounts for each device's memory.

use std::path::PathBuf;

use clap::Args;
use gpuheap::{Device, Heap};
use gpuheap_doctor::status::{self, Account, Place, Row};

use crate::failure::Failure;
use crate::verdict::Verdict;
use crate::{machine, output};

/// Arguments of `gpuheap status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// Show one device: 0, cuda:0, or an emulated one such as emulated:t4 or emulated:16GiB
    #[arg(long, value_name = "NAME", conflicts_with = "machine")]
    device: Option<String>,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Accounts and prints.
///
/// # Errors
///
/// No GPU, a driver that does not answer, a device that is not there.
pub(crate) fn run(arguments: &StatusArguments) -> Result<Verdict, Failure> {
    let (driver, accounts) = match arguments.device.as_deref() {
        Some(name) if name.starts_with("emulated") => (String::new(), vec![emulated(name)?]),
        name => real(arguments, name)?,
    };
    let text = if arguments.json {
        status::json(&accounts, &driver)
    } else {
        status::render(&accounts, &driver, machine::width())
    };
    output::print(&text).map(|()| Verdict::Fine)
}

fn real(
    arguments: &StatusArguments,
    name: Option<&str>,
) -> Result<(String, Vec<Account>), Failure> {
    let wanted = name.map(index).transpose()?;
    let machine = machine::read(arguments.machine.as_ref())?;
    let nvml = machine::nvml(&machine)?;
    let mut accounts = status::of(&machine);
    if let Some(wanted) = wanted {
        let count = accounts.len();
        accounts.retain(|account| account.index == Some(wanted));
        if accounts.is_empty() {
            return Err(Failure::could_not_look(format!(
                "there is no GPU {wanted}; this machine has {count}, numbered from 0"
            )));
        }
    }
    Ok((nvml.driver.clone(), accounts))
}

fn index(name: &str) -> Result<u32, Failure> {
    name.strip_prefix("cuda:").unwrap_or(name).parse().map_err(|_| {
        Failure::wrong_use(format!(
            "--device: '{name}' is not a device; write 0, cuda:0, emulated, emulated:16GiB or \
             emulated:t4"
        ))
    })
}

/// Accounts for an emulated device of this process, whose context is all that it holds.
fn emulated(name: &str) -> Result<Account, Failure> {
    let wrong = |error: gpuheap::Error| Failure::wrong_use(format!("--device: {error}"));
    let device = Device::open(name).map_err(wrong)?;
    let heap = Heap::new(&device).map_err(Failure::could_not_look)?;
    let status = heap.memory_status().map_err(Failure::could_not_look)?;
    let total = status.device_total;
    let used = status.device_used.unwrap_or(0);
    Ok(Account {
        index: None,
        name: format!("{} (emulated, of this process)", device.name()),
        uuid: String::new(),
        failure: None,
        total_bytes: total,
        free_bytes: total.saturating_sub(used),
        reserved_bytes: Some(0),
        used_bytes: used,
        processes: vec![Row {
            pid: std::process::id(),
            bytes: Some(used),
            kind: gpuheap_doctor::machine::Kind::Compute,
            place: Place::Own,
            user: None,
            command: Some("gpuheap status".to_owned()),
            age_seconds: None,
            container: None,
        }],
        contexts_bytes_estimated: used,
        unaccounted_bytes: 0,
        processes_without_figure: 0,
    })
}
