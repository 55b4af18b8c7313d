from spidertensor_study.cli import main

main()
