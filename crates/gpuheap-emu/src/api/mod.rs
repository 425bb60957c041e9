//! The driver API, grouped by area. Each function of the driver's table is a method of
//! [`Call`](crate::emulator::Call).
#![allow(non_snake_case)]

mod capture;
mod changes;
mod checkpoint;
mod context;
mod copy;
mod device;
mod event;
mod fill;
mod function;
mod general;
mod launch;
mod managed;
mod memory;
mod module;
mod pinned;
mod pointer;
mod pool;
mod pool_places;
mod stream;
mod vmm;
mod work;
