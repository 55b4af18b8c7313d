from spidertensor.cli import main

main()
