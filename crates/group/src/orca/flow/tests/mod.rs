mod chaos;
mod golden;
mod parity;
mod storm;
mod theory;
