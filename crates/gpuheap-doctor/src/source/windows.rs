//! Queries Windows from inside WSL2, through PowerShell.

use std::time::Duration;

use crate::facts::Skipped;

/// Time limit of PowerShell. Its first start takes one to three seconds.
const PATIENCE: Duration = Duration::from_secs(6);

/// Paths of PowerShell. The second path is for a distribution without Windows' folders in PATH.
const PLACES: [&str; 2] =
    ["powershell.exe", "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"];

/// Script for PowerShell. It queries classes and not counters, because Windows translates the names
/// of counters.
const SCRIPT: &str = "\
$n=@{};Get-Process|%{$n[[string]$_.Id]=$_.ProcessName};\
$c='Win32_PerfFormattedData_GPUPerformanceCounters_';\
Get-CimInstance ($c+'GPUAdapterMemory')|%{\"adapter|$($_.Name)|$($_.DedicatedUsage)|$($_.SharedUsage)\"};\
Get-CimInstance ($c+'GPUProcessMemory')|%{if($_.Name -match '^pid_(\\d+)_(.*)$')\
{\"process|$($matches[2])|$($n[$matches[1]])|$($_.DedicatedUsage)|$($_.SharedUsage)\"}};\
\"memory|$((Get-CimInstance Win32_ComputerSystem).TotalPhysicalMemory)\";\
Get-WinEvent -FilterHashtable @{LogName='System';Id=4101;StartTime=(Get-Date).AddHours(-1)} \
-ErrorAction SilentlyContinue|%{\"reset|$([int]((Get-Date)-$_.TimeCreated).TotalSeconds)\"};\
wsl.exe -l --running -q|%{$_ -replace [char]0,''}|?{$_.Trim()}|%{\"distribution|$($_.Trim())\"};\
Get-Content \"$env:USERPROFILE\\.wslconfig\" -ErrorAction SilentlyContinue|%{\"wslconfig|$_\"}";

/// Returns facts from Windows: counters of the card, the host's memory, resets of the driver, and
/// WSL2's settings. `run` runs a command with a time limit.
pub(super) fn query(
    run: impl Fn(&[&str], Duration) -> Result<String, Skipped>,
) -> Result<String, Skipped> {
    let query =
        |place| run(&[place, "-NoProfile", "-NonInteractive", "-Command", SCRIPT], PATIENCE);
    query(PLACES[0]).or_else(|first| query(PLACES[1]).map_err(|_| first))
}
