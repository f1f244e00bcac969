mod chaos;
mod golden;
mod parity;
mod theory;
