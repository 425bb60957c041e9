//! Functions that report a device's load and state. They return `NOT_SUPPORTED` for figures that
//! the description lacks.

use std::ffi::c_uint;

use crate::args::{Handle, Out, write_if_known, write_list};
use crate::code::{Code, Outcome, fail_if};
use crate::description::{Clocks, Device};
use crate::types::{FieldValue, Temperature, UtilizationRates};

functions! {
    figures {
        nvmlDeviceGetFanSpeed: |device| device.fan;
        nvmlDeviceGetPowerUsage: |device| device.power.usage;
        nvmlDeviceGetPowerManagementLimit | nvmlDeviceGetEnforcedPowerLimit |
        nvmlDeviceGetPowerManagementDefaultLimit: |device| device.power.limit;
        nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState: |device| device.performance_state;
        nvmlDeviceGetPersistenceMode: |device| device.persistence.map(u32::from);
        nvmlDeviceGetComputeMode: |device| device.compute_mode.map(|mode| mode as u32);
        nvmlDeviceGetDisplayActive | nvmlDeviceGetDisplayMode: |device| device.display.map(u32::from);
        nvmlDeviceGetRetiredPagesPendingStatus: |device| device.pages_pending.map(u32::from);
        nvmlDeviceGetCurrPcieLinkGeneration | nvmlDeviceGetMaxPcieLinkGeneration:
            |device| device.pcie.generation;
        nvmlDeviceGetCurrPcieLinkWidth | nvmlDeviceGetMaxPcieLinkWidth: |device| device.pcie.width;
    }

    fn nvmlDeviceGetUtilizationRates(nvml, device: Handle, rates: Out<UtilizationRates>) {
        let found = &nvml.device(device)?.utilization;
        let gpu = found.gpu.ok_or(Code::NOT_SUPPORTED)?;
        rates.write(UtilizationRates { gpu, memory: found.memory.unwrap_or(0) })
    }

    fn nvmlDeviceGetEncoderUtilization(
        nvml, device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>
    ) {
        sampled(nvml.device(device)?.utilization.encoder, percent, period_us)
    }

    fn nvmlDeviceGetDecoderUtilization(
        nvml, device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>
    ) {
        sampled(nvml.device(device)?.utilization.decoder, percent, period_us)
    }

    fn nvmlDeviceGetTemperature(nvml, device: Handle, sensor: c_uint, degrees: Out<c_uint>) {
        let found = nvml.device(device)?.temperature;
        fail_if(sensor != 0, Code::INVALID_ARGUMENT)?;
        write_if_known(degrees, found)
    }

    fn nvmlDeviceGetTemperatureV(nvml, device: Handle, reading: Out<Temperature>) {
        let found = nvml.device(device)?.temperature.ok_or(Code::NOT_SUPPORTED)?;
        let mut place = reading.get()?;
        fail_if(place.version != Temperature::VERSION, Code::ARGUMENT_VERSION_MISMATCH)?;
        fail_if(place.sensor != 0, Code::INVALID_ARGUMENT)?;
        place.temperature = i32::try_from(found).unwrap_or(i32::MAX);
        reading.write(place)
    }

    fn nvmlDeviceGetClockInfo(nvml, device: Handle, clock: c_uint, mhz: Out<c_uint>) {
        write_if_known(mhz, select_clock(&nvml.device(device)?.clocks, clock)?)
    }

    fn nvmlDeviceGetMaxClockInfo(nvml, device: Handle, clock: c_uint, mhz: Out<c_uint>) {
        write_if_known(mhz, select_clock(&nvml.device(device)?.max_clocks, clock)?)
    }

    fn nvmlDeviceGetEccMode(nvml, device: Handle, current: Out<c_uint>, pending: Out<c_uint>) {
        let mode = nvml.device(device)?.ecc.map(c_uint::from);
        write_if_known(current, mode)?;
        write_if_known(pending, mode)
    }

    // `kind` is 0 for corrected errors, and 1 for uncorrected errors.
    fn nvmlDeviceGetTotalEccErrors(
        nvml, device: Handle, kind: c_uint, _counter: c_uint, count: Out<u64>
    ) {
        let errors = nvml.device(device)?.ecc_errors.ok_or(Code::NOT_SUPPORTED)?;
        match kind {
            0 => count.write(errors.corrected),
            1 => count.write(errors.uncorrected),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    // `cause` is 0 for several one-bit errors, and 1 for a two-bit error.
    fn nvmlDeviceGetRetiredPages(
        nvml, device: Handle, cause: c_uint, count: Out<c_uint>, addresses: Out<u64>
    ) {
        write_list(addresses, count, &retired_pages(nvml.device(device)?, cause)?)
    }

    fn nvmlDeviceGetRetiredPages_v2(
        nvml, device: Handle, cause: c_uint, count: Out<c_uint>, addresses: Out<u64>,
        times: Out<u64>
    ) {
        let found = retired_pages(nvml.device(device)?, cause)?;
        write_list(addresses, count, &found)?;
        write_list(times, count, &vec![0; found.len()])
    }

    // `counter` is 0 for sent bytes, and 1 for received bytes.
    fn nvmlDeviceGetPcieThroughput(
        nvml, device: Handle, counter: c_uint, kib_a_second: Out<c_uint>
    ) {
        let pcie = &nvml.device(device)?.pcie;
        match counter {
            0 => write_if_known(kib_a_second, pcie.sent),
            1 => write_if_known(kib_a_second, pcie.received),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    // Sets the result code of each field to `NOT_SUPPORTED`.
    fn nvmlDeviceGetFieldValues(nvml, device: Handle, count: i32, values: Out<FieldValue>) {
        nvml.device(device)?;
        let length = usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)?;
        (0..length).map(|index| values.at(index)).try_for_each(|place| {
            let mut value = place.get()?;
            value.code = Code::NOT_SUPPORTED.number();
            place.write(value)
        })
    }
}

/// Returns the addresses of a device's retired pages.
fn retired_pages(device: &Device, cause: c_uint) -> Outcome<Vec<u64>> {
    let pages = device.retired_pages.ok_or(Code::NOT_SUPPORTED)?;
    let pages = if cause == 1 { pages.min(1 << 16) } else { 0 };
    Ok((0..u64::from(pages)).map(|page| page << 16).collect())
}

/// Writes a percentage, and a sampling period of one second.
fn sampled(figure: Option<u32>, percent: Out<c_uint>, period_us: Out<c_uint>) -> Outcome {
    write_if_known(percent, figure)?;
    period_us.write(1_000_000)
}

/// Returns the clock of type `kind`, numbered as in `nvmlClockType_t`.
fn select_clock(clocks: &Clocks, kind: c_uint) -> Outcome<Option<u32>> {
    match kind {
        0 => Ok(clocks.graphics),
        1 => Ok(clocks.sm),
        2 => Ok(clocks.memory),
        3 => Ok(clocks.video),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}
