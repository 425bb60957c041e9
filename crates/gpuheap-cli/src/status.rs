//! `gpuheap status`: accounts for each device's memory.

use std::path::PathBuf;

use clap::Args;
use gpuheap::{Device, Heap};
use gpuheap_doctor::Machine;
use gpuheap_doctor::status::{self, Account, Row};
use gpuheap_publish::{Detail, Published};

use crate::exit::{Failure, Verdict};
use crate::{machine, output, programs};

/// Arguments of `gpuheap status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    /// Show one device: 0, cuda:0, or an emulated one such as emulated:t4 or emulated:16GiB
    #[arg(long, value_name = "NAME", conflicts_with = "machine")]
    device: Option<String>,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Show one program that publishes its memory, with open scopes and the names that hold memory
    #[arg(long, value_name = "PID", conflicts_with_all = ["device", "machine"])]
    pid: Option<u32>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints an account of each device's memory. With `--pid`, prints the memory of one program
/// instead.
pub(crate) fn run(arguments: &StatusArguments) -> Result<Verdict, Failure> {
    if let Some(pid) = arguments.pid {
        return programs::print_status(pid, arguments.json);
    }
    let name = match arguments.device.as_deref() {
        Some(name) if name.starts_with("emulated") => {
            return print(arguments, &[emulated(name)?], "", None);
        }
        name => name,
    };
    let wanted = name.map(index).transpose()?;
    let mut machine = machine::read(arguments.machine.as_ref(), Detail::All)?;
    let devices = match machine::devices(&machine, wanted) {
        // Programs on emulated devices publish too.
        Err(_) if wanted.is_none() && !machine.programs.is_empty() => Vec::new(),
        devices => devices?,
    };
    let devices = devices.into_iter();
    let accounts: Vec<Account> = devices.map(|gpu| Account::new(&machine, gpu)).collect();
    if wanted.is_some() {
        machine.programs.retain_mut(|program| keep_devices(program, &accounts));
    }
    let driver = machine.nvml.as_ref().map_or_else(|_| String::new(), |nvml| nvml.driver.clone());
    print(arguments, &accounts, &driver, Some(&mut machine))
}

/// Prints the accounts: each device's memory by process. Under WSL2, also prints the figures of
/// Windows. Windows takes seconds to answer, so the accounts are printed first.
fn print(
    arguments: &StatusArguments,
    accounts: &[Account],
    driver: &str,
    mut machine: Option<&mut Machine>,
) -> Result<Verdict, Failure> {
    let programs = machine.as_ref().map(|machine| machine.programs.clone()).unwrap_or_default();
    let mut ask = || {
        let machine = machine.take()?;
        machine.read_windows();
        machine.windows.clone()
    };
    if arguments.json {
        let text = status::json(accounts, driver, ask().as_ref(), &programs);
        return output::print(&text).map(|()| Verdict::Fine);
    }
    let devices = status::render(accounts, driver, machine::width());
    let published = status::render_programs(&programs, machine::width());
    let sections = [devices, published].into_iter().filter(|section| !section.is_empty());
    output::print(&sections.collect::<Vec<_>>().join("\n"))?;
    if let Some(windows) = ask() {
        output::print(&format!("\n{}", status::render_windows(&windows, machine::width())))?;
    }
    Ok(Verdict::Fine)
}

/// Drops the heaps, lines, scopes and libraries of devices that `accounts` leaves out. Returns
/// `true` if at least one heap remains.
fn keep_devices(program: &mut Published, accounts: &[Account]) -> bool {
    let Some(status) = &mut program.status else { return false };
    status.heaps.retain(|heap| accounts.iter().any(|one| one.uuid == heap.uuid));
    let is_shown = |device: &str| status.heaps.iter().any(|heap| heap.device == device);
    program.leaks.sites.retain(|site| is_shown(&site.device));
    program.scopes.retain(|scope| is_shown(&scope.device));
    program.libraries.retain(|one| one.failure.is_some() || is_shown(&one.device));
    !status.heaps.is_empty()
}

fn index(name: &str) -> Result<u32, Failure> {
    name.strip_prefix("cuda:").unwrap_or(name).parse().map_err(|_| {
        Failure::wrong_use(format!(
            "--device: '{name}' is not a device; write 0, cuda:0, emulated, emulated:16GiB or \
             emulated:t4"
        ))
    })
}

/// Returns the account of an emulated device of this process. The context is the only memory in use
/// on that device.
fn emulated(name: &str) -> Result<Account, Failure> {
    let wrong = |error: gpuheap::Error| Failure::wrong_use(format!("--device: {error}"));
    let device = Device::open(name).map_err(wrong)?;
    let heap = Heap::new(&device).map_err(Failure::environment_error)?;
    let status = heap.memory_status().map_err(Failure::environment_error)?;
    let (total, used) = (status.device_total, status.device_used.unwrap_or(0));
    let row = Row {
        pid: std::process::id(),
        bytes: Some(used),
        command: Some("gpuheap status".to_owned()),
        ..Row::default()
    };
    Ok(Account {
        name: format!("{} (emulated, of this process)", device.name()),
        total_bytes: total,
        free_bytes: total.saturating_sub(used),
        reserved_bytes: Some(0),
        used_bytes: used,
        processes: vec![row],
        contexts_bytes_estimated: used,
        ..Account::default()
    })
}
